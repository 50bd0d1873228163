"""Runs of two models on the same inputs, and the verdict on their outputs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import field, replace
from typing import Any, ClassVar, TypeAlias, TypeVar

import numpy as np
import onnx_ir as ir

from onnxtile.declare.verb import VerbResult
from onnxtile.model.binding import example, free_inputs
from onnxtile.model.feeds import Feeds, Ranges, domains, given_shapes, sample_feeds
from onnxtile.model.session import ModelRunner, repeatable_session
from onnxtile.operators.takes import Domain
from onnxtile.system.dataclass import dataclass
from onnxtile.system.errors import ModelError, OnnxtileError
from onnxtile.system.progress import Progress, counted, silent
from onnxtile.system.runtime import Array
from onnxtile.verification.bisect import Bisection
from onnxtile.verification.open_sizes import Assignment, assignments, open_inputs, sizes_given
from onnxtile.verification.values import OutputError, badness, compare_values, missing

# Edge inputs: zeros, ones, large, small and negative numbers, NaN, infinity, and sequences and optional values without content.

Fill = Callable[[Array, Domain], Array]
"""Makes an edge input from a random input and the range that its consumers allow."""


def _constant(number: float) -> Fill:
    return lambda array, domain: domain.clipped(np.full(array.shape, number), array.dtype)


def _scaled(floats: float, integers: str) -> Fill:
    """Scale floats; integers become the lowest or the highest that is allowed."""

    def fill(array: Array, domain: Domain) -> Array:
        if not _is_float(array):
            low, high = domain.bounds(array.dtype)
            return np.full(array.shape, low if integers == "low" else high).astype(array.dtype)
        return domain.clipped(array.astype(np.float64) * floats, array.dtype)

    return fill


def _negative(array: Array, domain: Domain) -> Array:
    return domain.clipped(-np.abs(array.astype(np.float64)) - 1, array.dtype)


def _with(number: float) -> Fill:
    """Put a number that is not finite at the first place of floats."""

    def fill(array: Array, domain: Domain) -> Array:
        if not _is_float(array) or not array.size or domain.is_bounded:
            return array
        filled = array.copy()
        filled.flat[0] = number
        return filled

    return fill


def _is_float(array: Array) -> bool:
    return array.dtype.kind == "f" or (array.dtype.kind == "V" and "float" in array.dtype.name)


EDGES: dict[str, Fill] = {
    "zeros": _constant(0),
    "ones": _constant(1),
    "large": _scaled(1e4, "high"),
    "small": _scaled(1e-6, "low"),
    "negative": _negative,
    "NaN": _with(np.nan),
    "infinity": _with(np.inf),
}
"""The edges, in the order in which they are run. Large floats are 10,000 times random ones, still far from overflow in float32."""


def edge_feeds(model: ir.Model, near: Feeds, *, ranges: Ranges | None = None) -> Iterator[tuple[str, Feeds]]:
    """Yield sets of inputs at each edge that differ from `near`, of its shapes, and what the edge is called.

    An input that must have certain values (a shape, a mask, an index) stays inside them; texts and sequences stay as they are,
    but at the edge "empty", where sequences have no elements and optional values no content. A set that
    came before under another name is left out.
    """
    shapes = given_shapes(near)
    known = Assignment({}, {value: shapes.get(value.name or "") for value in free_inputs(model)})
    allowed = domains(model, known.sizes, ranges)
    seen = [_bits(near)]
    for name, fill in EDGES.items():
        feeds = {key: _filled(fill, value, allowed[key]) for key, value in near.items()}
        if _bits(feeds) not in seen:
            seen.append(_bits(feeds))
            yield name, feeds
    empty: dict[str, list[Array] | None] = {
        value.name or "": None if isinstance(value.type, ir.OptionalType) else []
        for value in free_inputs(model)
        if isinstance(value.type, ir.OptionalType | ir.SequenceType)
    }
    if empty:
        yield "empty", {**near, **empty}


def _filled(fill: Fill, value: Array | list[Array] | None, domain: Domain) -> Array | list[Array] | None:
    if value is None or isinstance(value, list) or value.dtype.kind in "OSUc" or domain.fixed is not None:
        return value
    return fill(value, domain)


def _bits(feeds: Feeds) -> list[bytes]:
    return [value.tobytes() for value in feeds.values() if isinstance(value, np.ndarray) and value.dtype.kind != "O"]


T = TypeVar("T")
OutputComparison: TypeAlias = Callable[[str, Any, Any], OutputError]
"""Returns the difference of an output, from its name, the expected value and the computed one."""


@dataclass(frozen=True, repr=False)
class Verdict(VerbResult):
    """Whether two models agree, output by output, on how many sets of inputs, and with which sizes for symbolic dimensions.

    `inputs` names the runs. `skipped` are sets of edge inputs that the first model itself does not take, with onnxruntime's reason.
    `outputs` are those that were compared. `not_compared` names the others with the reason: they depend on random numbers that are not the
    same in both models.

    `runs` is the number of sets of inputs, `dims` has the sizes of symbolic dimensions by name. `bisection` is the first value that
    differs; None where it was not asked for.
    """

    verb: ClassVar[str] = "verify"

    outputs: tuple[OutputError, ...]
    runs: int
    dims: Mapping[str, int] = field(default_factory=dict)
    inputs: tuple[str, ...] = ()
    skipped: Mapping[str, str] = field(default_factory=dict)
    bisection: Bisection | None = None
    not_compared: Mapping[str, str] = field(default_factory=dict)

    @property
    def equal(self) -> bool:
        """Whether every output that was compared agrees within its tolerance; False where no output could be compared."""
        return all(output.equal for output in self.outputs) and not self.is_empty

    @property
    def is_empty(self) -> bool:
        """Whether there are outputs, and none of them could be compared."""
        return bool(self.not_compared) and not self.outputs

    @property
    def max_rel(self) -> float:
        """The worst relative difference of all outputs."""
        return max((output.max_rel for output in self.outputs), default=0.0)

    @property
    def summary(self) -> str:
        """Whether the outputs are equal, how many were not compared, and how large the worst relative difference is."""
        left = f"{len(self.not_compared):,} outputs not compared"
        if self.is_empty:
            return f"{left}, {self.runs:,} runs"
        state = "equal" if self.equal else f"{sum(not output.equal for output in self.outputs):,} differ"
        worst = f"{self.runs:,} runs, worst relative error {self.max_rel:.2g}"
        return ", ".join([f"{len(self.outputs):,} outputs", state, *([left] if self.not_compared else []), worst])

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON of `verify`."""
        return {
            "equal": self.equal,
            "outputs": [output.to_dict() for output in self.outputs],
            "not_compared": dict(self.not_compared),
            "runs": self.runs,
            "dims": dict(self.dims),
            "inputs": list(self.inputs),
            "skipped": dict(self.skipped),
            **({"bisect": self.bisection.to_dict()} if self.bisection is not None else {}),
        }


@dataclass(frozen=True)
class Trial:
    """Inputs on which a model runs, what it gave, and what the inputs are called: "random 1", "zeros"."""

    feeds: Mapping[str, Any]
    results: Mapping[str, Any]
    inputs: str = ""


def run_original(
    model: ir.Model,
    *,
    runs: int = 2,
    seed: int = 0,
    given: Feeds | None = None,
    ranges: Ranges | None = None,
    runner: ModelRunner | None = None,
    progress: Progress = silent,
) -> tuple[list[Trial], dict[str, int]]:
    """Return trials of `model`, and the sizes its free dimensions were given for them.

    One trial on the inputs `given` (as `onnxtile.model.feeds.read_inputs` returns them), else `runs` trials on random ones, whose
    numbers lie in `ranges` where these name an input. `runner` is a session of `model`, made here where none is given.
    """
    runner = repeatable_session(model) if runner is None else runner
    if given is not None:
        return [Trial(given, runner.run(given), "given")], sizes_given(model, given)

    def attempt(assignment: Assignment) -> list[Trial]:
        feeds = (sample_feeds(model, assignment.sizes, seed=seed + run, ranges=ranges) for run in range(runs))
        return [
            Trial(fed, runner.run(fed), f"random {run}")
            for run, fed in zip(counted(range(1, runs + 1), "running the original", progress), feeds, strict=True)
        ]

    return first_that_runs(model, attempt)


def first_that_runs(model: ir.Model, attempt: Callable[[Assignment], T]) -> tuple[T, dict[str, int]]:
    """Return the result of `attempt` for the first sizes with which it raises no ModelError, and these sizes."""
    failure: OnnxtileError | None = None
    for assignment in assignments(model):
        try:
            return attempt(assignment), dict(assignment.dims)
        except ModelError as error:
            failure = failure or error
    assert failure is not None
    open_ = open_inputs(model)
    hint = (
        f"give sizes with which it runs, for example {example(open_)}"
        if open_
        else "the model that was given does not run so"
    )
    raise ModelError(failure.message, hint=failure.hint or hint)


def run_edges(
    model: ir.Model, near: Feeds, runner: ModelRunner, *, ranges: Ranges | None = None
) -> tuple[list[Trial], dict[str, str]]:
    """Return trials of `model` on edge inputs of the shapes that `near` has, and the edges that it refuses, with the reason.

    `runner` is a session of `model`.
    """
    trials, skipped = [], {}
    for name, feeds in edge_feeds(model, near, ranges=ranges):
        try:
            trials.append(Trial(feeds, runner.run(feeds), name))
        except ModelError as error:
            skipped[name] = error.message
    return trials, skipped


def compare_with(
    trials: Iterable[Trial],
    other: ir.Model,
    dims: Mapping[str, int],
    progress: Progress = silent,
    compared: OutputComparison = compare_values,
) -> Verdict:
    """Run `other` on the inputs of `trials` and compare every output with theirs.

    Raises ModelError where it takes other inputs, or onnxruntime refuses it.
    """
    trials = list(trials)
    for trial in trials[:1]:
        _require_inputs(other, trial.feeds)
    runner = repeatable_session(other)
    worst: dict[str, OutputError] = {}
    for trial in counted(trials, "comparing", progress):
        for error in _errors(trial.results, runner.run(trial.feeds), compared):
            if error.name not in worst or badness(error) > badness(worst[error.name]):
                worst[error.name] = replace(error, inputs=trial.inputs if len(trials) > 1 else "")
    return Verdict(tuple(worst.values()), len(trials), dims, tuple(trial.inputs for trial in trials))


def _errors(expected: Mapping[str, Any], got: Mapping[str, Any], compared: OutputComparison) -> Iterator[OutputError]:
    for name, value in expected.items():
        yield compared(name, value, got[name]) if name in got else missing(name)
    yield from (missing(name) for name in got if name not in expected)


def _require_inputs(model: ir.Model, feeds: Mapping[str, Any]) -> None:
    """Raise ModelError where `model` does not take `feeds`, by name, element type or shape."""
    inputs = {value.name or "": value for value in free_inputs(model)}
    if inputs.keys() != feeds.keys():
        lists = (", ".join(sorted(names)) or "none" for names in (feeds, inputs))
        raise ModelError("the models take different inputs: {} and {}".format(*lists))
    for name, value in inputs.items():
        array, dtype = feeds[name], value.dtype
        if not isinstance(array, np.ndarray) or dtype is None or value.shape is None:
            continue
        other = f"{dtype.name.lower()} [{', '.join(str(dim) for dim in value.shape)}]"
        fits = len(array.shape) == len(value.shape) and all(
            not isinstance(dim, int) or dim == size for dim, size in zip(value.shape, array.shape, strict=True)
        )
        if not fits or (dtype != ir.DataType.STRING and array.dtype != dtype.numpy()):
            mine = f"{ir.DataType.from_numpy(array.dtype).name.lower()} {list(array.shape)}"
            raise ModelError(
                f"the models take different inputs: {name!r} is {mine} in the first and {other} in the second"
            )
