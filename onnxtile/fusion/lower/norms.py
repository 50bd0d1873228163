"""Proofs of normalisations over the last axes: layer norm and RMS norm."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from functools import partial
from typing import TypeAlias

import numpy as np
import onnx_ir as ir

from onnxtile.fusion.lower.attention import NewNodes
from onnxtile.fusion.lower.definition import definition, is_defined_as
from onnxtile.fusion.lower.lowering import (
    FLOATS,
    HALVES,
    Argument,
    CallSite,
    FactsTable,
    Literal,
    NewNode,
    NotLowered,
    Operand,
    Replacement,
    known_dims,
    known_dtype,
    require_shape,
    require_type,
    shown,
)
from onnxtile.fusion.lower.lowering import value_of as value_from
from onnxtile.fusion.lower.terms import (
    Atom,
    Poly,
    TermsTooLarge,
    array_of,
    atom,
    atom_power,
    atoms,
    mean,
    number,
    operands,
    power,
    product,
    total,
    variable,
)
from onnxtile.model.constants import constant_array
from onnxtile.model.known import Dims
from onnxtile.system.dataclass import dataclass
from onnxtile.system.runtime import Array

# Along which axis a body reduces, and constants that have one element for each place along an axis.


def only_axis(form: Poly, reduction: str) -> int:
    """Return the one axis along which `form` reduces, keeping it. Raises NotLowered."""
    reductions = {base[1:3] for base, _ in atoms(form) if base[0] == reduction}
    if len(reductions) != 1:
        raise NotLowered(f"it has {len(reductions)} different sums")
    axes, keepdims = reductions.pop()
    if not isinstance(axes, tuple) or len(axes) != 1 or keepdims != 1:
        raise NotLowered("it does not reduce along one axis that stays")
    return int(axes[0])


def vector_along(what: str, constant: Argument | Literal, axis: int, rank: int, facts: FactsTable | None) -> Literal:
    """Return a constant that is the same along all axes of a value of `rank` but `axis` as the vector that it is.

    Raises NotLowered where it is no constant, or not the same.
    """
    array, dtype = (
        elements_of(what, constant, facts),
        known_dtype(constant) if isinstance(constant, Argument) else constant.dtype,
    )
    shape = (*(1,) * (rank - array.ndim), *array.shape)
    if len(shape) != rank or math.prod(shape) != shape[axis]:
        raise NotLowered(
            f"its {what} has the shape {list(array.shape)}, not one element for each place along axis {axis}"
        )
    return Literal(np.ascontiguousarray(array).reshape(-1), dtype, what)


def elements_of(what: str, constant: Argument | Literal, facts: FactsTable | None) -> Array:
    """Return the elements of a constant. Raises NotLowered where it is none."""
    if isinstance(constant, Literal):
        return constant.array
    if constant.array is not None:
        return constant.array
    if not constant.constant or constant.value is None or facts is None:
        raise NotLowered(f"its {what} is no constant")
    return facts.elements(constant.value)


# Means in another form: sums times 1 / n.


def in_means(poly: Poly, dims: Dims | None, tolerance: float) -> Poly:
    """Return `poly` with sums over axes of `dims`, the shape of what is summed, as means.

    A coefficient within `tolerance` of a whole number becomes it: 1 / n is rounded in the file. Raises NotLowered where it grows too large.
    """
    try:
        return _Means(dims, tolerance).rewritten(poly)
    except TermsTooLarge:
        raise NotLowered("its body is too large to be proved") from None


class _Means:
    def __init__(self, dims: Dims | None, tolerance: float) -> None:
        self._dims = dims
        self._tolerance = tolerance

    def rewritten(self, poly: Poly) -> Poly:
        terms = (
            product(number(coefficient), *(self._raised(*factor) for factor in monomial))
            for monomial, coefficient in poly
        )
        return frozenset((monomial, self._whole(coefficient)) for monomial, coefficient in total(*terms))

    def _raised(self, base: Atom, exponent: float) -> Poly:
        inner = tuple(self.rewritten(part) if isinstance(part, frozenset) else part for part in base)
        parts = list(operands(inner))
        if base[0] == "sum":
            return power(parts[0], exponent)
        count = self._count(inner)
        if count is None:
            return atom_power(inner, exponent)
        return power(product(number(count), mean(inner[1], parts[0])), exponent)  # type: ignore[arg-type]

    def _count(self, base: Atom) -> float | None:
        """Return how many elements a sum that keeps its axes is of; None for any other operator, and where it is not known."""
        if (
            base[0] != "ReduceSum"
            or len(base) != 4
            or base[2] != 1
            or self._dims is None
            or not isinstance(base[1], tuple)
        ):
            return None
        rank = len(self._dims)
        sizes = [self._dims[axis] for axis in base[1] if -rank <= axis < rank]
        known = [size for size in sizes if isinstance(size, int) and size > 0]
        return float(math.prod(known)) if known and len(known) == len(base[1]) else None

    def _whole(self, coefficient: float) -> float:
        nearest = float(round(coefficient)) if math.isfinite(coefficient) else 0.0
        return nearest if nearest and abs(coefficient - nearest) <= self._tolerance * abs(nearest) else coefficient


_DEFINED = {"RMSNormalization": ("RMSNormalization", 23)}
"""The definition of a normalisation, else that of LayerNormalization: the formula of InstanceNormalization, which has none, is the same."""
Part: TypeAlias = Argument | Literal | None


@dataclass(frozen=True)
class Norm:
    """What a site was proved to be: x normalised over the axes from `axis` (below 0) on, times `scale`, plus `bias`.

    The statistics are computed in `stash`, the rest in the element type of x. With `moved`, that axis of x is to be made the last first,
    and the result's last is to be put back there.
    """

    x: Argument
    axis: int
    epsilon: float
    scale: Operand
    bias: Operand
    stash: ir.DataType
    moved: int | None = None


@dataclass(frozen=True)
class Spatial:
    """x, each channel (axis 1) normalised over all axes after it, with one scale and one bias a channel."""

    x: Argument
    epsilon: float
    scale: Literal
    bias: Literal


@dataclass(frozen=True)
class _SiteNorm:
    """A normalisation over any axes (counted from 0)."""

    x: Argument
    dims: Dims
    axes: list[int]
    epsilon: float
    scale: Part
    bias: Part
    stash: ir.DataType


@dataclass(frozen=True)
class _NormTerms:
    """The parts of the formula that a body shows, before they are proved to be put together rightly."""

    x: int
    widened: int
    axes: tuple[int, ...]
    epsilon: float


def proved_norm(site: CallSite, result: Poly, operator: str) -> Norm:
    """Return the normalisation that `result`, an output of the site, is by the definition of `operator`. Raises NotLowered."""
    norm = _site_norm(site, _precise(site, result), operator)
    rank = len(norm.dims)
    if norm.axes != list(range(rank - len(norm.axes), rank)):
        return _moved(site, norm)
    axis = -len(norm.axes)
    for what, part in (("scale", norm.scale), ("bias", norm.bias)):
        _require_vector(what, part, norm.dims, axis, known_dtype(norm.x))
    return Norm(norm.x, axis, norm.epsilon, _operand(norm.scale), _operand(norm.bias), norm.stash)


def _precise(site: CallSite, result: Poly) -> Poly:
    """Return `result` as it is computed in float, where only parts of it are: the operator computes the statistics so in any case."""
    inside = any(
        base[0] == "Cast"
        for monomial, _ in result
        for outer, _ in monomial
        for part in operands(outer)
        for base, _ in atoms(part)
    )
    return site.loose_forms[0] if inside and site.is_half and len(site.forms) == 1 else result


def _moved(site: CallSite, norm: _SiteNorm) -> Norm:
    """Return a normalisation along one axis that is not the last, as convolutions have it, with constants along that axis."""
    rank = len(norm.dims)
    if len(norm.axes) != 1:
        raise NotLowered(f"it normalises over {_plural(norm.axes)} of {rank}, not over the last")
    (axis,) = norm.axes
    parts = (("scale", norm.scale), ("bias", norm.bias))
    scale, bias = (None if p is None else vector_along(what, p, axis, rank, site.facts) for what, p in parts)
    for what, vector in (("scale", scale), ("bias", bias)):
        _require_vector(what, vector, (norm.dims[axis],), -1, known_dtype(norm.x))
    return Norm(norm.x, -1, norm.epsilon, scale, bias, norm.stash, axis)


def proved_spatial(site: CallSite, operator: str) -> Spatial:
    """Return the normalisation of each channel over the axes after it that the site is. Raises NotLowered."""
    if len(site.forms) != 1:
        raise NotLowered("something reads its inner values")
    norm = _site_norm(site, site.forms[0], operator)
    rank, channels = len(norm.dims), norm.dims[1] if len(norm.dims) > 1 else None
    if norm.axes != list(range(2, rank)) or not isinstance(channels, int):
        raise NotLowered(
            f"it normalises over {_plural(norm.axes)} of {shown(norm.dims)}, not over all after the channels"
        )
    kind = known_dtype(norm.x)
    vectors = []
    for what, part, none in (("scale", norm.scale, np.ones), ("bias", norm.bias, np.zeros)):
        given = None if part is None else vector_along(what, part, 1, rank, site.facts)
        vectors.append(given or Literal(none(channels, kind.numpy()), kind, what))
        _require_vector(what, vectors[-1], (channels,), -1, kind)
    return Spatial(norm.x, norm.epsilon, *vectors)


def _site_norm(site: CallSite, result: Poly, operator: str) -> _SiteNorm:
    result = in_means(result, site.results[-1].dims, site.tolerance())
    parts = _parts(result)
    x = site.arguments[parts.x]
    dims = require_shape(site.results[-1], x)
    scale, bias, narrowed = _affine(site, result, parts, operator)
    x, stash = _source(site, x, parts, narrowed)
    require_type(operator, x, FLOATS)
    if known_dtype(x) != site.results[-1].dtype:
        raise NotLowered(f"its input is {known_dtype(x).name.lower()}, its result {site.dtype.name.lower()}")
    axes = sorted(axis % len(dims) for axis in parts.axes)
    return _SiteNorm(x, dims, axes, parts.epsilon, scale, bias, stash)


def _parts(result: Poly) -> _NormTerms:
    roots = {base for base, exponent in atoms(result) if base[0] == "sum" and exponent == -0.5}
    radicand = next(operands(roots.pop())) if len(roots) == 1 else frozenset()
    epsilon = dict(radicand).get(frozenset())
    if epsilon is None:
        raise NotLowered("it does not divide by the root of one sum: epsilon may be outside of the root")
    reductions = {base[1:-1] for base, _ in atoms(radicand) if base[0] == "ReduceMean"}
    if len(reductions) != 1:
        content = "are means over different axes" if reductions else "is no mean plus a number"
        raise NotLowered(f"below the root {content}")
    axes, *keepdims = reductions.pop()
    if not isinstance(axes, tuple) or keepdims != [1]:
        raise NotLowered("the mean does not keep its axes")
    index, widened = _variable(radicand)
    if epsilon < 0:
        raise NotLowered("epsilon is negative")
    return _NormTerms(index, widened, axes, epsilon)


def _variable(squares: Poly) -> tuple[int, int]:
    """Return the one input that the mean of squares is of, and the element type that it is cast to before (0 for none)."""
    inputs = {base[1] for base, _ in atoms(squares) if base[0] == "input"}
    casts = {base for base, _ in atoms(squares) if base[0] == "Cast"}
    if len(inputs) != 1 or len(casts) > 1:
        raise NotLowered("the mean of squares is of more than one value")
    index = int(inputs.pop())  # type: ignore[call-overload]
    if not casts:
        return index, 0
    cast = casts.pop()
    if next(operands(cast)) != variable(index):
        raise NotLowered("the normalisation contains a Cast")
    return index, int(cast[1])  # type: ignore[call-overload]


def _plural(axes: list[int]) -> str:
    return f"axis {axes[0]}" if len(axes) == 1 else f"the axes {axes}"


def _affine(site: CallSite, result: Poly, parts: _NormTerms, operator: str) -> tuple[Part, Part, int]:
    """Return scale and bias with which `result` is the normalisation, and the element type it is cast to before them (0 for none)."""
    outer = list(_candidates(site, result, parts))
    scales: list[tuple[Poly, Part]] = [(number(1.0), None), *outer]
    shifts = [None, *([] if operator == "RMSNormalization" else outer)]
    settings = (("axis", 1), ("epsilon", parts.epsilon))
    for narrowed, (scale, scale_part), shift in itertools.product((0, site.dtype.value), scales, shifts):
        terms = (variable(parts.x), scale, *(() if shift is None else shift[:1]))
        casts = tuple(dtype for dtype in (parts.widened, narrowed) if dtype)
        wanted = partial(
            definition, *_DEFINED.get(operator, ("LayerNormalization", 17)), terms, settings, parts.axes, casts
        )
        if is_defined_as(site, result, wanted):
            return scale_part, None if shift is None else shift[1], narrowed
    raise NotLowered("its body is not the normalisation of one value, scaled and shifted")


def _candidates(site: CallSite, result: Poly, parts: _NormTerms) -> Iterator[tuple[Poly, Part]]:
    """Yield candidates for scale and bias: inputs and constants outside of all operators."""
    outer = sorted({base for monomial, _ in result for base, exponent in monomial if exponent == 1}, key=repr)
    for base in outer:
        if base[0] == "input" and base[1] != parts.x:
            yield atom(*base), site.arguments[int(base[1])]  # type: ignore[arg-type, call-overload]
        elif base[0] == "constant":
            array = array_of(base)
            yield atom(*base), Literal(array, ir.DataType.from_numpy(array.dtype), "constant")  # type: ignore[arg-type]


def _source(site: CallSite, x: Argument, parts: _NormTerms, narrowed: int) -> tuple[Argument, ir.DataType]:
    """Return the value to normalise and the element type of the statistics. A Cast to float around them is what the operator does."""
    if not narrowed and not parts.widened:
        return x, ir.DataType.FLOAT
    if parts.widened:
        if ir.DataType(parts.widened) != ir.DataType.FLOAT or not narrowed:
            raise NotLowered("a Cast changes the precision in which it computes")
        return x, ir.DataType.FLOAT
    # The Cast to float precedes the call.
    producer = x.value.producer() if x.value is not None else None
    if known_dtype(x) != ir.DataType.FLOAT or ir.DataType(narrowed) not in HALVES:
        raise NotLowered("a Cast changes the precision in which it computes")
    if producer is None or producer.op_type != "Cast" or producer.domain or site.facts is None:
        raise NotLowered(
            f"its result is cast to {ir.DataType(narrowed).name.lower()}, but its input was computed in float"
        )
    source = producer.inputs[0]
    assert source is not None
    before = site.facts.argument(source)
    if before.dtype != ir.DataType(narrowed):
        raise NotLowered("its input and its result are cast from and to different element types")
    return before, ir.DataType.FLOAT


def _require_vector(what: str, part: Part, dims: Dims, axis: int, dtype: ir.DataType) -> None:
    """Raise NotLowered unless scale or bias has exactly the normalised axes."""
    if part is None:
        if what == "scale" and not all(isinstance(dim, int) for dim in dims[axis:]):
            raise NotLowered("it has no scale, and the length of its axis is not known")
        return
    shape = part.array.shape if isinstance(part, Literal) else known_dims(part)
    if tuple(shape) != tuple(dims[axis:]) or not all(isinstance(dim, int) for dim in shape):
        raise NotLowered(
            f"its {what} has the shape {shown(tuple(shape))}, the normalised axes are {shown(dims[axis:])}"
        )
    if part.dtype != dtype:
        dtype_name = "unknown" if part.dtype is None else part.dtype.name.lower()
        raise NotLowered(f"its {what} is {dtype_name}, its input {dtype.name.lower()}")


def _operand(part: Part) -> Operand:
    return part.value if isinstance(part, Argument) else part


def scale_of(norm: Norm) -> Operand:
    """Return the scale, of ones where the site has none."""
    if norm.scale is not None:
        return norm.scale
    dims = known_dims(norm.x)
    axes = dims[norm.axis :] if norm.moved is None else (dims[norm.moved],)
    lengths = [size for size in axes if isinstance(size, int)]
    dtype = known_dtype(norm.x)
    return Literal(np.ones(lengths, dtype.numpy()), dtype, "ones")


def normalised(norm: Norm, operator: str, inputs: tuple[Operand, ...], *, since: int) -> Replacement:
    """Return the operator on x and `inputs`, between transpositions where it is not over the last axes."""
    settings = {"axis": norm.axis, "epsilon": norm.epsilon, "stash_type": norm.stash.value}
    x: Operand = value_from(norm.x)
    if norm.moved is None:
        return Replacement.one(operator, (x, *inputs), settings, since=since)
    rank = len(known_dims(norm.x))
    last = (*(axis for axis in range(rank) if axis != norm.moved), norm.moved)
    steps = NewNodes([])
    result = steps.add(NewNode(operator, (steps.transposed(x, last), *inputs), settings, since=since))
    back = steps.add(NewNode("Transpose", (result,), {"perm": tuple(last.index(axis) for axis in range(rank))}))
    return Replacement(tuple(steps.steps), (back,), result.step)


# Proofs about InstanceNormalization and the nodes around it: groups or channels normalised, scaled and shifted.


@dataclass(frozen=True)
class Instances:
    """x, of which `groups` groups of channels are normalised over the other axes; `scale` and `bias` have one element a channel."""

    x: Argument
    groups: int
    epsilon: float
    scale: Literal
    bias: Literal


class _InstanceBody:
    """The nodes of a body that are no constants, and what is known of what they read."""

    def __init__(self, site: CallSite) -> None:
        self._facts = site.facts
        self._known: dict[ir.Value, Argument] = dict(zip(site.function.inputs, site.arguments, strict=True))
        self.nodes: list[ir.Node] = []
        for node in site.function:
            if node.op_type == "Constant":
                array = constant_array(node)
                dtype = ir.DataType.from_numpy(array.dtype)
                self._known[node.outputs[0]] = Argument(None, dtype, array.shape, array, constant=True)
            else:
                self.nodes.append(node)

    def argument(self, value: ir.Value | None) -> Argument | None:
        return None if value is None else self._known.get(value)

    def array(self, value: ir.Value | None, what: str) -> Array:
        argument = self.argument(value)
        if argument is None:
            raise NotLowered(f"its {what} is no constant")
        return elements_of(what, argument, self._facts)


def proved_instances(site: CallSite, operator: str) -> Instances:
    """Return the groups that a site normalises: Reshape, InstanceNormalization and Reshape, or the operator alone, then Mul and Add.

    Raises NotLowered.
    """
    body = _InstanceBody(site)
    kinds = [node.op_type for node in body.nodes]
    grouped = kinds[:3] == ["Reshape", "InstanceNormalization", "Reshape"]
    core = body.nodes[1] if grouped else body.nodes[0]
    after = kinds[3:] if grouped else kinds[1:]
    if core.op_type != "InstanceNormalization" or after not in ([], ["Mul"], ["Mul", "Add"], ["Add"]):
        raise NotLowered(f"its body is {', '.join(kinds)}")
    x = body.argument(body.nodes[0].inputs[0])
    if x is None:
        raise NotLowered("what it normalises is computed in it")
    dims = known_dims(x)
    if require_type(operator, x, FLOATS) != site.dtype or not _same(known_dims(site.results[0]), dims):
        raise NotLowered(f"its result has the shape {shown(known_dims(site.results[0]))}, its input {shown(dims)}")
    vectors = [body.array(value, what) for value, what in zip(core.inputs[1:], ("scale", "bias"), strict=True)]
    groups = _groups(body, vectors[0].size, dims, grouped=grouped)
    assert isinstance(dims[1], int)
    scale, bias = (np.repeat(array.astype(np.float64), dims[1] // groups) for array in vectors)
    for node in body.nodes[3 if grouped else 1 :]:
        vector = _factor(body, node, dims, site)
        scale, bias = (scale * vector, bias * vector) if node.op_type == "Mul" else (scale, bias + vector)
    kind = site.dtype.numpy()
    literals = (Literal(array.astype(kind), site.dtype, what) for array, what in ((scale, "scale"), (bias, "bias")))
    return Instances(x, groups, core.attributes.get_float("epsilon", 1e-5), *literals)


def _groups(body: _InstanceBody, groups: int, dims: Dims, *, grouped: bool) -> int:
    """Return `groups`, where a Reshape to (batch, groups, rest), if there is one, makes as many."""
    channels = dims[1] if len(dims) > 2 else None
    if not isinstance(channels, int) or channels % groups:
        raise NotLowered(f"the channels of {shown(dims)} do not fall into {groups} groups")
    if not grouped:
        if channels != groups:
            raise NotLowered(f"it has {groups} scales for the channels of {shown(dims)}")
        return groups
    target = body.array(body.nodes[0].inputs[1], "first shape")
    keeps_batch = (
        target.size >= 3
        and (target[0] == 0 or target[0] == dims[0])
        and body.nodes[0].attributes.get_int("allowzero", 0) == 0
    )
    if not keeps_batch or target[1] != groups or _too_many(target, dims):
        raise NotLowered(f"the shape {target.tolist()} does not make groups of the channels of {shown(dims)}")
    return groups


def _too_many(target: Array, dims: Dims) -> bool:
    """Tell whether the axes after the groups may be anything but what is left."""
    return bool((target[2:] == 0).any()) and len(dims) != len(target)


def _factor(body: _InstanceBody, node: ir.Node, dims: Dims, site: CallSite) -> Array:
    constants = [argument for value in node.inputs if (argument := body.argument(value)) is not None]
    if len(constants) != 1:
        raise NotLowered("what it is scaled with or shifted by is no constant")
    literal = vector_along("scale" if node.op_type == "Mul" else "bias", constants[0], 1, len(dims), site.facts)
    return literal.array.astype(np.float64)


def _same(a: Dims, b: Dims) -> bool:
    return len(a) == len(b) and all(
        x == y or not (isinstance(x, int) and isinstance(y, int)) for x, y in zip(a, b, strict=True)
    )
