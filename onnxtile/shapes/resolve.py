"""Element types and shapes of all values: by onnx's inference of the whole model, then by one forward pass.

What is still unknown is read off runs on sample inputs, and last taken from what the file declares. Of onnxruntime's own operators, only
its own inference counts (`contributed`).
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Collection, Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import field, replace
from functools import partial
from typing import Any, TypeAlias

import onnx_ir as ir

from onnxtile.model.binding import Unbound, free_inputs
from onnxtile.model.constants import Constants
from onnxtile.model.feeds import ANYTHING, Wanted, fed_sizes
from onnxtile.model.formula import SizeFormula, SizeRanges, product_of, read_size, read_sizes
from onnxtile.model.known import Known, declared, numeric
from onnxtile.model.submodel import exposing
from onnxtile.operators.node_view import Dim, Dims
from onnxtile.operators.takes import Sizes
from onnxtile.shapes.bodies import data_dependent
from onnxtile.shapes.infer import inferred_by_onnx, readable, values
from onnxtile.shapes.propagation import Propagation, named_sizes
from onnxtile.system.dataclass import dataclass
from onnxtile.system.errors import ModelWarning, NoKernel, UsageError, nearest
from onnxtile.system.interpreter import collector_paused

# Shapes measured in runs on sample inputs: the last resort, for shapes that no inference finds and no data decide.

_SAMPLES = 2
"""Runs whose shapes must agree: a shape that differs between them depends on the data."""


@dataclass
class Samples:
    """Results of the runs: element type and shape of each value, or the reason why it has none. `refuted` values differed between runs."""

    known: dict[ir.Value, Known] = field(default_factory=dict)
    reasons: dict[ir.Value, str] = field(default_factory=dict)
    refuted: set[ir.Value] = field(default_factory=set)


def sampled(model: ir.Model, values: Iterable[ir.Value], sizes: Sizes, wanted: Wanted = ANYTHING) -> Samples:
    """Return the types and shapes that runs of `model` on inputs as `wanted` give to `values` of its main graph. `model` is not changed.

    Where onnxruntime has no kernel for one of its operators, nothing is known. Raises ModelError where it refuses the model.
    """
    samples = Samples()
    dependent = data_dependent(model)
    open_ = []
    for value in values:
        if value in dependent:
            cause = dependent[value]
            samples.reasons[value] = f"its shape depends on the data ({cause.op_type} {cause.name or ''}".rstrip() + ")"
        else:
            open_.append(value)
    if not open_:
        return samples
    names = [value.name or "" for value in open_]
    try:
        session = exposing(model, names)
    except NoKernel as error:
        lacking = error.message.partition(":")[0]
        reason = f"no inference knows its shape, and {lacking}; the model can declare it in value_info"
        samples.reasons.update(dict.fromkeys(open_, reason))
        return samples
    runs = [session.run(feeds, names) for feeds in wanted.feeds(model, sizes, _SAMPLES)]
    for value in open_:
        _compare(value, [run[value.name or ""] for run in runs], samples)
    return samples


def _compare(value: ir.Value, seen: list[Any], samples: Samples) -> None:
    if not all(hasattr(array, "shape") for array in seen):
        samples.reasons[value] = "it is not a tensor"
        return
    shapes = {tuple(int(size) for size in array.shape): None for array in seen}
    if len(shapes) > 1:
        listed = " and ".join(str(list(shape)) for shape in shapes)
        samples.reasons[value] = f"its shape depends on the data (runs gave {listed})"
        samples.refuted.add(value)
        return
    dtype = seen[0].dtype
    element = ir.DataType.STRING if dtype.kind in "OSU" else ir.DataType.from_numpy(dtype)
    samples.known[value] = Known(element, next(iter(shapes)))


# Sizes over ranges of symbolic dimensions: the formula of each size, and its largest value.

Formulas: TypeAlias = Mapping[ir.Value, tuple[SizeFormula, ...]]
"""The sizes of values, as formulas of the symbols that have ranges."""


# Bounds for shapes that depend on the data: `--dim NAME=:N` says how large a dimension may become.

_LISTED = 8


def bounded(
    model: ir.Model,
    dtypes: Mapping[ir.Value, ir.DataType],
    dims: Mapping[ir.Value, Dims],
    bounds: Mapping[str, int],
    smaller: Mapping[ir.Value, Collection[int]] | None = None,
) -> Propagation:
    """Return the shapes of `model` with each open dimension at its bound; `upper` holds the values whose sizes are upper bounds.

    A name is that of a dimension, or of a value or a node, all of whose open dimensions it bounds. On the axes in `smaller`, values may be
    smaller than `dims` say. Raises UsageError for a bound below 1, a name that no
    value of unknown size has, and two different bounds for one dimension.
    """
    for name, most in bounds.items():
        if most < 1:
            raise UsageError(f"invalid bound {name!r}={most}: the upper bound of a dimension is at least 1")
    named: dict[str, list[tuple[ir.Value, int]]] = {}
    for value in values(model):
        for name, axis in _names(value, dims.get(value)):
            named.setdefault(name, []).append((value, axis))
    bound_of: dict[tuple[ir.Value, int], int] = {}
    for name, most in bounds.items():
        for dimension in _places(name, named, model):
            if bound_of.setdefault(dimension, most) != most:
                raise UsageError(
                    f"a dimension of {dimension[0].name!r} is bound to {bound_of[dimension]} and, as {name!r}, to {most}"
                )
    filled = dict(dims)
    for (value, axis), most in bound_of.items():
        before = filled[value]
        filled[value] = (*before[:axis], most, *before[axis + 1 :])
    upper: dict[ir.Value, set[int]] = {value: set(axes) for value, axes in (smaller or {}).items()}
    for value, axis in bound_of:
        upper.setdefault(value, set()).add(axis)
    propagation = Propagation(model, dtypes, filled, upper, upper)
    propagation.run()
    return propagation


def _names(value: ir.Value, dims: Dims | None) -> Iterator[tuple[str, int]]:
    """Yield the names of each open dimension of `value`, with its axis."""
    node, declared = value.producer(), value.shape
    for axis, dim in enumerate(dims or ()):
        if not isinstance(dim, int):
            written = declared[axis] if declared is not None and len(declared) == len(dims or ()) else None
            symbol = written.value if isinstance(written, ir.SymbolicDim) else None
            called = (dim, symbol, value.name, None if node is None else node.name)
            yield from ((name, axis) for name in dict.fromkeys(filter(None, called)))


def _places(name: str, named: Mapping[str, list[tuple[ir.Value, int]]], model: ir.Model) -> list[tuple[ir.Value, int]]:
    if name in named:
        return named[name]
    if any(name in {value.name, node.name} for node in model.graph.all_nodes() for value in node.outputs):
        raise UsageError(f"invalid bound {name!r}: all its dimensions are static, or its rank is not known")
    listed = ", ".join(list(named)[:_LISTED])
    others = f"those that depend on the data are {listed}" if named else "every size is known, leave it out"
    reason = f"invalid bound {name!r}: no open dimension, value or node has this name"
    raise UsageError(reason, hint=nearest(name, named, others))


@dataclass(frozen=True)
class Shapes:
    """A side table beside a model: element type and dimensions of its values, in all its graphs."""

    _dtypes: Mapping[ir.Value, ir.DataType] = field(repr=False)
    _dims: Mapping[ir.Value, Dims] = field(repr=False)
    _reasons: Mapping[ir.Value, str] = field(default_factory=dict, repr=False)
    _never: Mapping[ir.Value, str] = field(default_factory=dict, repr=False)
    _upper: Collection[ir.Value] = field(default=frozenset(), repr=False)
    _otherwise: str = field(default="no shape inference knows it", repr=False)
    _formulas: Formulas = field(default_factory=dict, repr=False)

    def dtype(self, value: ir.Value) -> ir.DataType | None:
        """Return the element type; None where it is unknown or the value is no tensor."""
        return self._dtypes.get(value)

    def has_dtype(self, dtypes: AbstractSet[ir.DataType]) -> bool:
        """Return whether any value has an element type of `dtypes`."""
        return not dtypes.isdisjoint(self._dtypes.values())

    def dims(self, value: ir.Value) -> Dims | None:
        """Return the dimensions: a number, the name of a symbol, or None where unknown; None as a whole where the rank is unknown."""
        return self._dims.get(value)

    def sizes(self, value: ir.Value) -> tuple[int, ...] | None:
        """Return the dimensions where all are known numbers, else None."""
        return numeric(self._dims.get(value))

    def is_bound(self, value: ir.Value) -> bool:
        """Return whether the sizes of `value` are only bounds, and a run may show smaller ones."""
        return value in self._upper

    def has_bound(self, values: Iterable[ir.Value | None]) -> bool:
        """Return whether the sizes of one of `values` are only bounds."""
        return bool(self._upper) and any(value in self._upper for value in values)

    def formulas(self, value: ir.Value) -> tuple[SizeFormula, ...] | None:
        """Return the sizes of `value` as formulas of the dimensions that have a range; None where they are not known."""
        return self._formulas.get(value)

    def at(self, sizes: Mapping[str, int]) -> Shapes:
        """Return these shapes at sizes of the dimensions that have a range; what has no formula keeps its largest size."""
        sizes_of = {value: tuple(size.at(sizes) for size in formulas) for value, formulas in self._formulas.items()}
        return replace(self, _dims={**self._dims, **sizes_of})

    def carried_on(self, model: ir.Model) -> Propagation:
        """Return what follows from these shapes of `model`: the few numbers that it computes of them."""
        propagation = Propagation(model, self._dtypes, self._dims)
        propagation.run()
        return propagation

    def never(self, value: ir.Value) -> str | None:
        """Return why no run makes `value`, which stands in a branch that cannot be taken; None where one may."""
        return self._never.get(value)

    def reason(self, value: ir.Value) -> str:
        """Return why the shape of `value` is not known."""
        return self._reasons.get(value, self._otherwise)

    def of_copies(
        self,
        copies: Mapping[ir.Value, ir.Value | Iterable[ir.Value]],
        upper: Collection[ir.Value] = (),
    ) -> Shapes:
        """Return the shapes of these values for their `copies`, one or several each; the copies in `upper` have upper bounds."""
        pairs = [(v, copy) for v, same in copies.items() for copy in ([same] if isinstance(same, ir.Value) else same)]
        return Shapes(
            {copy: self._dtypes[value] for value, copy in pairs if value in self._dtypes},
            {copy: self._dims[value] for value, copy in pairs if value in self._dims},
            {copy: self._reasons[value] for value, copy in pairs if value in self._reasons},
            {copy: self._never[value] for value, copy in pairs if value in self._never},
            frozenset(copy for value, copy in pairs if value in self._upper).union(upper),
            self._otherwise,
            _formulas={copy: self._formulas[value] for value, copy in pairs if value in self._formulas},
        )

    def with_those_of(self, other: Shapes) -> Shapes:
        """Return the shapes of the values of both, which have no value in common."""
        return Shapes(
            {**self._dtypes, **other._dtypes},
            {**self._dims, **other._dims},
            {**self._reasons, **other._reasons},
            {**self._never, **other._never},
            frozenset((*self._upper, *other._upper)),
            _formulas={**self._formulas, **other._formulas},
        )


@collector_paused()
def resolve(
    model: ir.Model,
    *,
    run: bool = False,
    wanted: Wanted = ANYTHING,
    bounds: Mapping[str, int] | None = None,
    ranges: SizeRanges | None = None,
) -> Shapes:
    """Return the types and shapes of the values of `model`, which stays unchanged.

    With `run`, where the shapes of all inputs are known, shapes that inference left open are those of runs on inputs as `wanted`. Where a
    shape depends on the data, `Shapes.reason` names the operator, unless `bounds` say how large the dimension may become (see `bounded`).
    A shape that the file declares counts where nothing else gives one; an output with a wrong one is a ModelWarning. Of the symbols in
    `ranges` the largest sizes are returned, and formulas. Raises ModelError where shapes contradict each other, or onnxruntime refuses the
    model in a run, and UsageError for bounds that make no sense.
    """
    originals = values(model)
    from_file = dict(zip(originals, map(declared, originals), strict=True))
    shapes, refuted = _inferred(model, from_file, ranges or {}), set[ir.Value]()
    if run:
        shapes, refuted = _with_samples(model, shapes, wanted, ranges or {})
    main = {value for node in model.graph for value in node.outputs}
    promises = {value: from_file[value].dims for value in originals if value in main}
    _warn_of_declarations({value: dims for value, dims in promises.items() if value.is_graph_output()}, shapes)
    shapes = _with_promises(model, {v: dims for v, dims in promises.items() if v not in refuted}, shapes, ranges or {})
    shapes = _with_largest(model, shapes, ranges, bounds) if ranges or bounds else shapes
    options = Unbound.from_inputs(value for value in free_inputs(model) if shapes.sizes(value) is None).options
    return replace(shapes, _otherwise=f"inputs have open dimensions: give {options}") if options else shapes


def _inferred(model: ir.Model, from_file: Mapping[ir.Value, Known], ranges: SizeRanges) -> Shapes:
    """Return what onnx infers, and the forward pass. Declared shapes count for values that no node of the main graph makes."""
    from_onnx = inferred_by_onnx(model)
    main = {value for node in model.graph for value in node.outputs}
    named = named_sizes(model)
    dtypes, dims = dict[ir.Value, ir.DataType](), dict[ir.Value, Dims]()
    for (value, stated), known in zip(from_file.items(), from_onnx, strict=True):
        if _is_optional(value):  # onnx takes some for the tensor in it
            continue
        dtype = known.dtype or stated.dtype
        merged = known.dims if value in main else _merge_dims(known.dims, readable(stated.dims, named))
        if dtype is not None:
            dtypes[value] = dtype
        if merged is not None:
            dims[value] = merged
    stumbled = not any(value in dims for value in main)
    return _with_computed(model, Shapes(dtypes, dims), ranges, from_file if stumbled else ())


def _with_promises(
    model: ir.Model, promises: Mapping[ir.Value, Dims | None], shapes: Shapes, ranges: SizeRanges
) -> Shapes:
    """Return `shapes` with declared sizes of the file for values whose sizes are not all known otherwise.

    Over `ranges`, a declared size replaces a name that the forward pass gave, never a formula. The check of a plan compares it with shapes
    of known sizes.
    """
    stated = dict[ir.Value, Dims]()
    for value, dims in promises.items():
        known = shapes.dims(value)
        if dims is None or shapes.sizes(value) is not None:
            continue
        if ranges and known is not None and len(known) == len(dims):
            stated[value] = tuple(map(partial(_readable, ranges=ranges), known, dims))
        elif (merged := _merge_dims(known, dims)) is not None:
            stated[value] = merged
    news = [value for value, dims in stated.items() if dims != shapes.dims(value)]
    filled = replace(shapes, _dims={**shapes._dims, **stated})
    return _with_computed(model, filled, ranges, news) if news and ranges else filled


def _readable(known: Dim, stated: Dim, ranges: SizeRanges) -> Dim:
    return stated if read_size(known, ranges) is None and read_size(stated, ranges) is not None else known


def _warn_of_declarations(declarations: Mapping[ir.Value, Dims | None], shapes: Shapes) -> None:
    """Warn where an output has another shape than the model declares. The shape that the nodes make counts, as in onnxruntime.

    A declared shape without dimensions contradicts none: exporters write it where they do not know the shape.
    """
    pairs = ((value, dims, shapes.dims(value)) for value, dims in declarations.items())
    wrong = [
        (value.name, _shown(dims), _shown(true_dims))
        for value, dims, true_dims in pairs
        if dims and true_dims is not None and (len(dims) != len(true_dims) or _differ(dims, true_dims))
    ]
    if wrong:
        name, stated, true = wrong[0]
        others = f"; so are {len(wrong) - 1} others" if len(wrong) > 1 else ""
        warnings.warn(
            f"the model declares the output {name!r} as {stated}, and it is {true}{others}",
            ModelWarning,
            stacklevel=2,
        )


def _shown(dims: Dims) -> str:
    known = (str(dim) if isinstance(dim, int) or (dim or "").isidentifier() else "?" for dim in dims)
    return f"[{', '.join(known)}]"


def _with_largest(
    model: ir.Model, shapes: Shapes, ranges: SizeRanges | None, bounds: Mapping[str, int] | None
) -> Shapes:
    """Return `shapes` with the largest sizes over `ranges`, and where `bounds` are reached.

    Upper bounds of sizes that no formula says follow from the largest of those before them.
    """
    filled, loose = dict(shapes._dims), dict[ir.Value, set[int]]()
    for value, formulas in shapes._formulas.items():
        filled[value] = tuple(max(0, size.limits(ranges or {})[1]) for size in formulas)
        axes = {axis for axis, size in enumerate(formulas) if size.constant is None}
        if axes:
            loose[value] = axes
    if bounds:
        further = bounded(model, shapes._dtypes, filled, bounds, loose)
    elif any(_is_open(value) and value not in shapes._formulas for value in values(model)):
        further = Propagation(model, shapes._dtypes, filled, values(model), loose)
        further.run()
    else:
        return replace(shapes, _dims=filled, _upper=frozenset(loose))
    never = {**shapes._never, **further.never}
    upper = frozenset((*further.upper, *loose))
    return replace(shapes, _dtypes=further.dtypes, _dims=further.dims, _never=never, _upper=upper)


def _differ(first: Dims, second: Dims) -> bool:
    return any(a != b for a, b in zip(first, second, strict=False) if isinstance(a, int) and isinstance(b, int))


def _merge_dims(first: Dims | None, second: Dims | None) -> Dims | None:
    """Return the dimensions that either has; `first` counts where they contradict each other."""
    if first is None or second is None:
        return second if first is None else first
    if len(first) != len(second) or _differ(first, second):
        return first
    return tuple(_better(a, b) for a, b in zip(first, second, strict=True))


def _better(a: Dim, b: Dim) -> Dim:
    if isinstance(a, int) or (b is None and a is not None):
        return a
    return b if isinstance(b, int) or a is None else a


def _with_computed(model: ir.Model, shapes: Shapes, ranges: SizeRanges, news: Iterable[ir.Value] = ()) -> Shapes:
    """Return `shapes` with what the forward pass adds, and the formulas of sizes over `ranges`.

    Of the values `news` they are known from elsewhere than inference.
    """
    if any(_is_open(value) and shapes.sizes(value) is None for value in values(model)):
        further = Propagation(model, shapes._dtypes, shapes._dims, news, ranges=ranges)
        further.run(only_sizes=True)
        shapes = replace(shapes, _dtypes=further.dtypes, _dims=further.dims, _never=further.never)
    return replace(shapes, _formulas=_formulas(model, shapes, ranges)) if ranges else shapes


def _formulas(model: ir.Model, shapes: Shapes, ranges: SizeRanges) -> Formulas:
    known = ((value, read_sizes(shapes.dims(value), ranges)) for value in values(model))
    return {value: sizes for value, sizes in known if sizes is not None}


def _with_samples(model: ir.Model, shapes: Shapes, wanted: Wanted, ranges: SizeRanges) -> tuple[Shapes, set[ir.Value]]:
    """Return `shapes` with what sample runs show of the main graph's values that inference left open, and those that had no one shape."""
    outputs = (value for node in model.graph for value in node.outputs)
    open_ = [v for v in outputs if v.name and shapes.sizes(v) is None and _may_be_tensor(v)]
    if not open_ or any(fed_sizes(value, shapes.sizes) is None for value in free_inputs(model)):
        return shapes, set()
    samples = sampled(model, open_, shapes.sizes, wanted)
    dtypes, dims = dict(shapes._dtypes), dict(shapes._dims)
    for value, known in samples.known.items():
        if known.dims is not None:
            dims[value] = known.dims
        if known.dtype is not None:
            dtypes.setdefault(value, known.dtype)
    seen = replace(shapes, _dtypes=dtypes, _dims=dims, _reasons=samples.reasons)
    return _with_computed(model, seen, ranges, samples.known), samples.refuted


def _is_open(value: ir.Value) -> bool:
    return bool(value.name) and value.const_value is None and _may_be_tensor(value)


def _may_be_tensor(value: ir.Value) -> bool:
    return (value.type is None or isinstance(value.type, ir.TensorType)) and not _is_optional(value)


def _is_optional(value: ir.Value) -> bool:
    """Return whether `value` is an optional one: a run shows the tensor in it, and says no more."""
    node = value.producer()
    while node is not None and node.op_type == "Identity" and node.inputs[0] is not None:
        value = node.inputs[0]
        node = value.producer()
    return type(value.type) is ir.OptionalType or (node is not None and node.op_type == "Optional")


# The bytes of a tensor, and the alignment of its elements.

_NO_FIXED_SIZE = {None, ir.DataType.UNDEFINED, ir.DataType.STRING}


def tensor_bytes(value: ir.Value, shapes: Shapes) -> int | None:
    """Return the bytes of `value`; None where its shape is unknown or its elements have no fixed size.

    Elements of less than a byte are packed, as in TensorProto: two to a byte for int4, the last byte filled up.
    """
    sizes, dtype = shapes.sizes(value), shapes.dtype(value)
    if sizes is None or dtype is None or dtype in _NO_FIXED_SIZE:
        return None
    return -(-math.prod(sizes) * dtype.bitwidth // 8)


def bytes_formula(value: ir.Value, shapes: Shapes) -> SizeFormula | None:
    """Return the bytes of `value` as a formula of the dimensions that have a range; None where it has none."""
    sizes, dtype = shapes.formulas(value), shapes.dtype(value)
    if sizes is None or dtype is None or dtype in _NO_FIXED_SIZE:
        return None
    return (product_of(sizes) * dtype.bitwidth + 7) // 8


def granule(dtype: ir.DataType) -> int:
    """Return the alignment of an element of `dtype` in bytes: its own size, at least 1."""
    return max(1, dtype.bitwidth // 8)


# The shapes of a model that was raised to a newer opset, or written, from those of the original.


def shapes_of_raised(original: ir.Model, shapes: Shapes, source: ir.Model) -> Shapes | None:
    """Return the shapes of `original` as those of `source`, which is raised from it: values that are in both have one name.

    None where `source` computes values that `original` does not have.
    """
    known: dict[str, ir.Value | None] = {}
    for value in values(original):
        known[value.name or ""] = None if value.name in known else value
    there = [value for value in values(source) if value.name]
    counterparts = {old: value for value in there if (old := known.get(value.name or "")) is not None}
    constants = Constants(source)
    whole = all(value in constants or known.get(value.name or "") is not None for value in there)
    return shapes.of_copies(counterparts) if whole else None


def known_shapes(model: ir.Model, shapes: Shapes) -> Shapes:
    """Return the shapes of a written model: those known before, and those that its new values carry."""
    dtypes, dims = {}, {}
    for value in values(model):
        dtype, sizes = shapes.dtype(value) or value.dtype, shapes.dims(value)
        if dtype is not None:
            dtypes[value] = dtype
        if sizes is None and value.shape is not None:
            sizes = tuple(dim if isinstance(dim, int) else dim.value for dim in value.shape)
        if sizes is not None:
            dims[value] = sizes
    return Shapes(dtypes, dims)
