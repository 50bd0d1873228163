"""Whether two models compute the same, found out by running both in onnxruntime on the same inputs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import onnx_ir as ir

from onnxtile.errors import ModelError, OnnxtileError
from onnxtile.model.dims import bind, free_inputs
from onnxtile.model.feeds import sample_feeds
from onnxtile.model.given import Feeds, given_shapes
from onnxtile.model.save import external_folder, to_bytes
from onnxtile.runtime import Array, Session

RELATIVE = 1e-4
"""How far a float32 may be off, relative to its own size.

Coarser element types may be off by more, in proportion to the square root of their precision (0.9 % for float16, 2.6 % for
bfloat16), and by one unit in the last place at least: in proportion to the precision itself anything would pass.
"""

ABSOLUTE = 1e-5
"""How far it may be off besides, relative to the largest value of the output: small values come from cancelling large ones.

For coarser element types four units in the last place of the largest value, at most half of what is relative.
"""

# Sizes that are tried for dimensions that nobody bound: different ones first, so that exchanged axes are noticed.
_SIZES: tuple[tuple[int, ...], ...] = ((2, 8, 3, 5, 7), (8,), (16,), (32,), (64,), (128,), (224,), (1,))


@dataclass(frozen=True)
class OutputError:
    """The worst difference on one output over all runs: absolute, relative to the expected element, and where it was.

    `tolerance` is the relative one; 0 where equality is asked for (integers, booleans, strings).
    """

    name: str
    max_abs: float
    max_rel: float
    tolerance: float
    equal: bool
    reason: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON of one output; an error without bounds is null, as JSON has no infinity."""
        errors = {key: value if np.isfinite(value) else None for key, value in self._errors().items()}
        return {"name": self.name, **errors, "equal": self.equal, **({"reason": self.reason} if self.reason else {})}

    def _errors(self) -> dict[str, float]:
        return {"max_abs": self.max_abs, "max_rel": self.max_rel, "tolerance": self.tolerance}


@dataclass(frozen=True)
class Verdict:
    """Whether two models agree, output by output, on how many sets of inputs, and with which sizes for symbolic dimensions."""

    outputs: tuple[OutputError, ...]
    runs: int
    dims: Mapping[str, int] = field(default_factory=dict)

    @property
    def equal(self) -> bool:
        """Whether every output agrees within its tolerance."""
        return all(output.equal for output in self.outputs)

    @property
    def max_rel(self) -> float:
        """The worst relative difference of all outputs."""
        return max((output.max_rel for output in self.outputs), default=0.0)

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON of `verify`."""
        return {
            "equal": self.equal,
            "outputs": [output.to_dict() for output in self.outputs],
            "runs": self.runs,
            "dims": dict(self.dims),
        }


@dataclass(frozen=True)
class Trial:
    """Inputs on which a model runs, and what it gave."""

    feeds: Mapping[str, Any]
    results: Mapping[str, Any]


def session(model: ir.Model) -> Session:
    """Return a session of `model` as it is in memory. Raises ModelError with onnxruntime's reason."""
    return Session(to_bytes(model), external=external_folder(model))


def compare(original: ir.Model, other: ir.Model, *, runs: int = 2, seed: int = 0) -> Verdict:
    """Run both models on the same random inputs and compare every output.

    Symbolic dimensions that are not bound get sizes with which `original` runs. Raises ModelError where onnxruntime refuses one of
    the models, or where no such sizes are found.
    """
    trials, dims = run_original(original, runs=runs, seed=seed)
    return compare_with(trials, other, dims)


def run_original(
    model: ir.Model, *, runs: int = 2, seed: int = 0, given: Feeds | None = None
) -> tuple[list[Trial], dict[str, int]]:
    """Return trials of `model`, and the sizes its free dimensions were given for them.

    One trial on the inputs `given` (as `onnxtile.model.given.read_inputs` returns them), else `runs` trials on random ones.
    """
    runner = session(model)
    if given is not None:
        return [Trial(given, runner.run(given))], _sizes_given(model, given)
    failure: OnnxtileError | None = None
    for dims, shapes in _assignments(model):
        try:
            trials = []
            for run in range(runs):
                feeds = sample_feeds(model, partial(_sizes, shapes), seed=seed + run)
                trials.append(Trial(feeds, runner.run(feeds)))
        except ModelError as error:
            failure = failure or error
            continue
        return trials, dims
    assert failure is not None
    hint = "bind the symbolic dimensions: --dim NAME=N or --shape INPUT=1x3x224x224" if _is_open(model) else None
    raise ModelError(str(failure), hint=hint)


def compare_with(trials: list[Trial], other: ir.Model, dims: Mapping[str, int]) -> Verdict:
    """Run `other` on the inputs of `trials` and compare every output with theirs."""
    runner = session(other)
    worst: dict[str, OutputError] = {}
    for trial in trials:
        got = runner.run(trial.feeds)
        for name, expected in trial.results.items():
            error = _missing(name) if name not in got else compare_values(name, expected, got[name])
            if name not in worst or _badness(error) > _badness(worst[name]):
                worst[name] = error
        worst.update({name: _missing(name) for name in got if name not in trial.results})
    return Verdict(tuple(worst.values()), len(trials), dims)


def compare_values(name: str, expected: Any, got: Any) -> OutputError:
    """Compare one output: floats within the tolerance of their precision, everything else for equality."""
    if not isinstance(expected, np.ndarray) or not isinstance(got, np.ndarray):
        return _compare_others(name, expected, got)
    if expected.dtype != got.dtype or expected.shape != got.shape:
        reason = f"{expected.dtype} {list(expected.shape)} became {got.dtype} {list(got.shape)}"
        return OutputError(name, np.inf, np.inf, 0.0, equal=False, reason=reason)
    if not _is_inexact(expected):
        same = bool(np.array_equal(expected, got))
        return OutputError(name, 0.0 if same else _distance(expected, got), 0.0 if same else np.inf, 0.0, equal=same)
    return _compare_floats(name, expected, got)


def _compare_floats(name: str, expected: Array, got: Array) -> OutputError:
    precision = _precision(expected)
    tolerance = max(RELATIVE, RELATIVE * float(np.sqrt(precision / np.finfo(np.float32).eps)), precision)
    floor = max(ABSOLUTE, min(4 * precision, tolerance / 2))
    wide = np.complex128 if expected.dtype.kind == "c" else np.float64
    a, b = expected.astype(wide), got.astype(wide)
    finite = np.isfinite(a)
    if not np.array_equal(a[~finite], b[~finite], equal_nan=True) or not np.isfinite(b[finite]).all():
        return OutputError(
            name, np.inf, np.inf, tolerance, equal=False, reason="it is not finite where it should be, or the reverse"
        )
    size, off = np.abs(a[finite]), np.abs(a[finite] - b[finite])
    largest = float(size.max(initial=0.0))
    allowed = tolerance * size + floor * largest
    relative = np.divide(off, size, out=np.where(off > 0, np.inf, 0.0), where=size > 0)
    max_rel = float(relative[size > largest * 1e-3].max(initial=0.0)) if largest else float(relative.max(initial=0.0))
    return OutputError(name, float(off.max(initial=0.0)), max_rel, tolerance, equal=bool((off <= allowed).all()))


def _compare_others(name: str, expected: Any, got: Any) -> OutputError:
    """Compare sequences element by element, and optional or map values for equality."""
    if isinstance(expected, list) and isinstance(got, list) and len(expected) == len(got):
        errors = [compare_values(name, a, b) for a, b in zip(expected, got, strict=True)]
        return max(errors, key=_badness, default=OutputError(name, 0.0, 0.0, 0.0, equal=True))
    same = type(expected) is type(got) and bool(expected == got)
    return OutputError(name, 0.0 if same else np.inf, 0.0 if same else np.inf, 0.0, equal=same)


def _missing(name: str) -> OutputError:
    return OutputError(name, np.inf, np.inf, 0.0, equal=False, reason="only one of the models has it")


def _badness(error: OutputError) -> tuple[bool, float, float]:
    return (not error.equal, error.max_abs, error.max_rel)


def _distance(expected: Array, got: Array) -> float:
    if expected.dtype.kind not in "iu" and "int" not in expected.dtype.name:
        return np.inf
    return float(np.abs(expected.astype(np.float64) - got.astype(np.float64)).max(initial=0.0))


def _is_inexact(array: Array) -> bool:
    """Tell whether `array` has floats or complex numbers; bfloat16, float8 and int4 are all of numpy's kind "V"."""
    return array.dtype.kind in "fc" or (array.dtype.kind == "V" and "float" in array.dtype.name)


def _precision(array: Array) -> float:
    if array.dtype.kind == "V" or array.dtype.itemsize < 2:
        import ml_dtypes

        return float(ml_dtypes.finfo(array.dtype).eps)  # type: ignore[no-untyped-call]
    return float(np.finfo(array.dtype).eps)


def _is_open(model: ir.Model) -> bool:
    return any(value.shape is None or not value.shape.is_static() for value in free_inputs(model))


def _assignments(model: ir.Model) -> Iterator[tuple[dict[str, int], dict[ir.Value, tuple[int, ...] | None]]]:
    """Yield sizes for the symbols of `model` that may work, with the inputs' shapes; a static model has one way only."""
    inputs = free_inputs(model)
    if not _is_open(model):
        yield {}, {v: None if v.shape is None else v.shape.numpy() for v in inputs}
        return
    for sizes in _SIZES:
        dims: dict[str, int] = {}
        shapes: dict[ir.Value, tuple[int, ...] | None] = {}
        for value in inputs:
            if value.shape is None:
                shapes[value] = None
                continue
            named = [dim if isinstance(dim, int) else _symbol(value, axis, dim) for axis, dim in enumerate(value.shape)]
            for dim in named:
                if isinstance(dim, str):
                    dims.setdefault(dim, sizes[min(len(dims), len(sizes) - 1)])
            shapes[value] = tuple(dim if isinstance(dim, int) else dims[dim] for dim in named)
        yield dims, shapes


def _sizes_given(model: ir.Model, given: Feeds) -> dict[str, int]:
    """Return what size each free dimension has in `given`."""
    return {
        _symbol(value, axis, dim): given_shapes(given)[value.name or ""][axis]
        for value in free_inputs(model)
        for axis, dim in enumerate(value.shape or ())
        if not isinstance(dim, int)
    }


def _sizes(shapes: Mapping[ir.Value, tuple[int, ...] | None], value: ir.Value) -> tuple[int, ...] | None:
    """Return the shape that an input was given, or what the file says of another value."""
    if value in shapes:
        return shapes[value]
    if value.const_value is not None:
        return tuple(value.const_value.shape.numpy())
    return value.shape.numpy() if value.shape is not None and value.shape.is_static() else None


def _symbol(value: ir.Value, axis: int, dim: ir.SymbolicDim) -> str:
    """Return the symbol's name; one without a name, or named "?", is its own."""
    return dim.value if dim.value and dim.value.isidentifier() else f"{value.name}[{axis}]"


def bound_copy(model: ir.Model, dims: Mapping[str, int]) -> ir.Model:
    """Return a copy of `model` whose inputs have the sizes that a trial ran with."""
    copy = model.clone()
    shapes = {}
    for value in free_inputs(copy):
        if value.shape is not None and not value.shape.is_static():
            named = [
                dim if isinstance(dim, int) else dims[_symbol(value, axis, dim)] for axis, dim in enumerate(value.shape)
            ]
            shapes[value.name or ""] = tuple(named)
    bind(copy, {}, shapes)
    return copy
