"""Lowerings of normalisations: layer, root mean square, group, instance and L2 norms, and a norm after a sum; with their proofs."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from functools import partial
from typing import TypeAlias

import numpy as np
import onnx_ir as ir

from onnxtile.fusion.lower.attention import AttentionSteps
from onnxtile.fusion.lower.lowering import (
    FLOATS,
    WITH_DOUBLE,
    Argument,
    CallSite,
    Literal,
    Lowering,
    LoweringFacts,
    NewNode,
    NotLowered,
    Operand,
    Replacement,
    definition,
    inlined,
    is_defined_as,
    known_dims,
    known_dtype,
    provable,
    require_operator,
    require_shape,
    require_type,
    shown,
    value_of,
)
from onnxtile.fusion.lower.terms import (
    Atom,
    Poly,
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
from onnxtile.operators.node_view import Dims
from onnxtile.system.dataclass import dataclass
from onnxtile.system.runtime import Array
from onnxtile.verification.rounding import HALVES

# Proofs of normalisations over the last axes: layer norm and RMS norm.


def only_axis(form: Poly) -> int:
    """Return the one axis along which `form` is summed, keeping it. Raises NotLowered."""
    reductions = {base[1:3] for base, _ in atoms(form) if base[0] == "ReduceSum"}
    if len(reductions) != 1:
        raise NotLowered(f"it has {len(reductions)} different sums")
    axes, keepdims = reductions.pop()
    if not isinstance(axes, tuple) or len(axes) != 1 or keepdims != 1:
        raise NotLowered("it does not reduce along one axis that stays")
    return int(axes[0])


def vector_along(what: str, constant: Argument | Literal, axis: int, rank: int, facts: LoweringFacts) -> Literal:
    """Return a constant that is the same along all axes of a value of `rank` but `axis` as the vector that it is.

    Raises NotLowered where it is no constant, or not the same.
    """
    if isinstance(constant, Literal):
        array, dtype = constant.array, constant.dtype
    else:
        array, dtype = facts.elements_of(constant, f"its {what} is no constant"), known_dtype(constant)
    shape = (*(1,) * (rank - array.ndim), *array.shape)
    if len(shape) != rank or math.prod(shape) != shape[axis]:
        raise NotLowered(
            f"its {what} has the shape {list(array.shape)}, not one element for each place along axis {axis}"
        )
    return Literal(np.ascontiguousarray(array).reshape(-1), dtype, what)


# Means in another form: sums times 1 / n.


def in_means(poly: Poly, dims: Dims | None, tolerance: float) -> Poly:
    """Return `poly` with each sum over axes, and each global average, written as a mean; `dims` is the shape of the summed value.

    A coefficient within `tolerance` of a whole number becomes it: 1 / n is rounded in the file. Raises NotLowered where `poly` grows
    too large.
    """
    with provable():
        return _Means(dims, tolerance).rewritten(poly)


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
        if base[:2] == ("GlobalAveragePool", "") and self._dims is not None:
            return power(mean(tuple(range(2, len(self._dims))), parts[0]), exponent)
        count = self._count(inner)
        if count is None:
            return atom_power(inner, exponent)
        return power(product(number(count), mean(inner[1], parts[0])), exponent)  # type: ignore[arg-type]

    def _count(self, base: Atom) -> float | None:
        """Return how many elements a sum with keepdims adds up; None for any other operator, or where that is not known."""
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
"""The definition by operator. All others use that of LayerNormalization; InstanceNormalization has no definition, but the same formula."""
Part: TypeAlias = Argument | Literal | None


@dataclass(frozen=True)
class ChannelNorm:
    """The normalisation of x over `groups` groups of channels and all later axes; `scale` and `bias` have one element a channel."""

    x: Argument
    groups: int
    epsilon: float
    scale: Literal
    bias: Literal

    @property
    def inputs(self) -> tuple[Operand, ...]:
        """The inputs of the operator that normalises."""
        return value_of(self.x), self.scale, self.bias


@dataclass(frozen=True)
class _SiteNorm:
    """A normalisation over any axes (counted from 0)."""

    x: Argument
    dims: Dims
    axes: list[int]
    epsilon: float
    scale: Part
    bias: Part

    def parts(self, along: int | None, facts: LoweringFacts) -> Iterator[tuple[str, Part]]:
        """Yield the scale and the bias, as vectors where they lie `along` an axis. Raises NotLowered."""
        for what, part in (("scale", self.scale), ("bias", self.bias)):
            is_vector = part is not None and along is not None
            yield what, vector_along(what, part, along, len(self.dims), facts) if is_vector else part  # type: ignore[arg-type]


@dataclass(frozen=True)
class _NormTerms:
    """The parts of the formula that a body shows, before they are proved to be put together rightly."""

    x: int
    widened: int
    axes: tuple[int, ...]
    epsilon: float


def normalised(site: CallSite, operator: str, since: int) -> Replacement:
    """Return the `operator` that the site is by its definition. Raises NotLowered.

    A normalisation along one axis that is not the last, as convolutions have it, is between transpositions, with constants along that axis.
    """
    norm = _site_norm(site, _precise(site), operator)
    rank, first = len(norm.dims), norm.axes[0]
    is_last = norm.axes == list(range(first, rank))
    if not is_last and len(norm.axes) != 1:
        raise NotLowered(f"it normalises over {_plural(norm.axes)} of {rank}, not over the last")
    kind, sizes = known_dtype(norm.x), norm.dims[first:] if is_last else norm.dims[first : first + 1]
    inputs: list[Operand] = []
    for what, given in norm.parts(None if is_last else first, site.facts):
        part = _without_ones(what, given, len(sizes), site.facts)
        _require_vector(what, part, sizes, kind)
        if part is not None:
            inputs.append(part.value if isinstance(part, Argument) else part)
        elif what == "scale":
            inputs.append(
                Literal(np.ones([size for size in sizes if isinstance(size, int)], kind.numpy()), kind, "ones")
            )
    settings = {"axis": -len(sizes), "epsilon": norm.epsilon, "stash_type": ir.DataType.FLOAT.value}
    x = value_of(norm.x)
    if is_last:
        return Replacement.one(operator, (x, *inputs), settings, since=since)
    last = (*(axis for axis in range(rank) if axis != first), first)
    steps = AttentionSteps()
    result = steps.add(NewNode(operator, (steps.transposed(x, last), *inputs), settings, since=since))
    back = steps.add(NewNode("Transpose", (result,), {"perm": tuple(last.index(axis) for axis in range(rank))}))
    return steps.replacement(back, result)


def _precise(site: CallSite) -> Poly:
    """Return the result as it is computed in float, where only parts of it are: the operator computes the statistics so in any case."""
    result = site.forms[0]
    inside = any(
        base[0] == "Cast"
        for monomial, _ in result
        for outer, _ in monomial
        for part in operands(outer)
        for base, _ in atoms(part)
    )
    return site.loose_forms[0] if inside and site.is_half and len(site.forms) == 1 else result


def proved_channels(site: CallSite, operator: str) -> ChannelNorm:
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
    for (what, part), usual in zip(norm.parts(1, site.facts), (np.ones, np.zeros), strict=True):
        vectors.append(part if isinstance(part, Literal) else Literal(usual(channels, kind.numpy()), kind, what))
        _require_vector(what, vectors[-1], (channels,), kind)
    return ChannelNorm(norm.x, channels, norm.epsilon, *vectors)


def _site_norm(site: CallSite, result: Poly, operator: str) -> _SiteNorm:
    result = in_means(result, site.results[-1].dims, site.tolerance())
    parts = _parts(result)
    x = site.arguments[parts.x]
    dims = require_shape(site.results[-1], x)
    scale, bias, narrowed = _affine(site, result, parts, operator)
    x = _source(site, x, parts, narrowed)
    require_type(operator, x, FLOATS)
    if known_dtype(x) != site.results[-1].dtype:
        raise NotLowered(f"its input is {known_dtype(x).name.lower()}, its result {site.dtype.name.lower()}")
    axes = sorted(axis % len(dims) for axis in parts.axes)
    return _SiteNorm(x, dims, axes, parts.epsilon, scale, bias)


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


def _source(site: CallSite, x: Argument, parts: _NormTerms, narrowed: int) -> Argument:
    """Return the value to normalise. A Cast to float around the statistics is what the operator does. Raises NotLowered."""
    if parts.widened and (ir.DataType(parts.widened) != ir.DataType.FLOAT or not narrowed):
        raise NotLowered("a Cast changes the precision in which it computes")
    if parts.widened or not narrowed:
        return x
    # The Cast to float precedes the call.
    producer = x.value.producer() if x.value is not None else None
    if known_dtype(x) != ir.DataType.FLOAT or ir.DataType(narrowed) not in HALVES:
        raise NotLowered("a Cast changes the precision in which it computes")
    if producer is None or producer.op_type != "Cast" or producer.domain:
        raise NotLowered(
            f"its result is cast to {ir.DataType(narrowed).name.lower()}, but its input was computed in float"
        )
    source = producer.inputs[0]
    assert source is not None
    before = site.facts.argument(source)
    if before.dtype != ir.DataType(narrowed):
        raise NotLowered("its input and its result are cast from and to different element types")
    return before


def _without_ones(what: str, part: Part, rank: int, facts: LoweringFacts) -> Part:
    """Return scale or bias with `rank` axes, where it has more, which are of length 1 and come first."""
    shape = None if part is None else tuple(part.array.shape) if isinstance(part, Literal) else known_dims(part)
    if part is None or shape is None or len(shape) <= rank or any(size != 1 for size in shape[:-rank]):
        return part
    array = part.array if isinstance(part, Literal) else facts.elements_of(part, f"its {what} is no constant")
    dtype = part.dtype if isinstance(part, Literal) else known_dtype(part)
    return Literal(np.ascontiguousarray(array).reshape(array.shape[-rank:]), dtype, what)


def _require_vector(what: str, part: Part, sizes: Dims, dtype: ir.DataType) -> None:
    """Raise NotLowered unless scale or bias has exactly the `sizes` of the normalised axes."""
    if part is None:
        if what == "scale" and not all(isinstance(size, int) for size in sizes):
            raise NotLowered("it has no scale, and the length of its axis is not known")
        return
    shape = tuple(part.array.shape) if isinstance(part, Literal) else known_dims(part)
    if shape != tuple(sizes) or not all(isinstance(size, int) for size in shape):
        raise NotLowered(f"its {what} has the shape {shown(shape)}, the normalised axes are {shown(sizes)}")
    if part.dtype != dtype:
        dtype_name = "unknown" if part.dtype is None else part.dtype.name.lower()
        raise NotLowered(f"its {what} is {dtype_name}, its input {dtype.name.lower()}")


# Proofs about InstanceNormalization and the nodes around it: groups or channels normalised, scaled and shifted.


def proved_instances(site: CallSite, operator: str) -> ChannelNorm:
    """Return the groups that a site normalises: Reshape, InstanceNormalization and Reshape, or the operator alone, then Mul and Add.

    Raises NotLowered.
    """
    nodes = site.nodes
    kinds = [node.op_type for node in nodes]
    grouped = kinds[:3] == ["Reshape", "InstanceNormalization", "Reshape"]
    core, after = nodes[int(grouped)], nodes[3 if grouped else 1 :]
    if core.op_type != "InstanceNormalization" or [node.op_type for node in after] not in _AFFINE:
        raise NotLowered(f"its body is {', '.join(kinds)}")
    x = site.known.get(nodes[0].inputs[0])  # type: ignore[arg-type]
    if x is None:
        raise NotLowered("what it normalises is computed in it")
    if require_type(operator, x, FLOATS) != site.dtype:
        raise NotLowered("its inputs and its result differ in their element types")
    dims = require_shape(site.results[0], x)
    scale, bias = (_elements(site, value, what) for value, what in zip(core.inputs[1:], ("scale", "bias"), strict=True))
    groups = _groups(site, scale.size, dims, nodes[0] if grouped else None)
    assert isinstance(dims[1], int)
    scale, bias = (np.repeat(array.astype(np.float64), dims[1] // groups) for array in (scale, bias))
    for node in after:
        vector = _factor(site, node, len(dims))
        scale, bias = (scale * vector, bias * vector) if node.op_type == "Mul" else (scale, bias + vector)
    kind = site.dtype.numpy()
    literals = (Literal(array.astype(kind), site.dtype, what) for array, what in ((scale, "scale"), (bias, "bias")))
    return ChannelNorm(x, groups, core.attributes.get_float("epsilon", 1e-5), *literals)


_AFFINE: tuple[list[str], ...] = ([], ["Mul"], ["Mul", "Add"], ["Add"])
"""The operators that may follow the normalisation."""


def _elements(site: CallSite, value: ir.Value | None, what: str) -> Array:
    argument = None if value is None else site.known.get(value)
    if argument is None:
        raise NotLowered(f"its {what} is no constant")
    return site.facts.elements_of(argument, f"its {what} is no constant")


def _groups(site: CallSite, groups: int, dims: Dims, reshape: ir.Node | None) -> int:
    """Return `groups`, where the `reshape` to (batch, groups, rest), if there is one, makes as many."""
    channels = dims[1] if len(dims) > 2 else None
    if not isinstance(channels, int) or channels % groups:
        raise NotLowered(f"the channels of {shown(dims)} do not fall into {groups} groups")
    if reshape is None:
        if channels != groups:
            raise NotLowered(f"it has {groups} scales for the channels of {shown(dims)}")
        return groups
    target = _elements(site, reshape.inputs[1], "first shape")
    # With other axes than x has, a size of 0 after the groups may be anything but what is left.
    keeps_rest = len(dims) == len(target) or not (target[2:] == 0).any()
    keeps_batch = target.size >= 3 and target[0] in {0, dims[0]} and not reshape.attributes.get_int("allowzero", 0)
    if not keeps_batch or not keeps_rest or target[1] != groups:
        raise NotLowered(f"the shape {target.tolist()} does not make groups of the channels of {shown(dims)}")
    return groups


def _factor(site: CallSite, node: ir.Node, rank: int) -> Array:
    constants = [site.known[value] for value in node.inputs if value in site.known]
    if len(constants) != 1:
        raise NotLowered("what it is scaled with or shifted by is no constant")
    literal = vector_along("scale" if node.op_type == "Mul" else "bias", constants[0], 1, rank, site.facts)
    return literal.array.astype(np.float64)


class Norm(Lowering):
    """A normalisation over the last axes, which is a standard operator of the opset `since`.

    https://onnx.ai/onnx/operators/onnx__LayerNormalization.html, which is also the operator that onnxruntime runs best, and
    onnx__RMSNormalization.html: onnxruntime's own SimplifiedLayerNormalization stands in the standard domain, where no checker knows it.
    """

    def __init__(self, name: str, operator: str, since: int) -> None:
        self.name = name
        self._operator = operator
        self._since = since

    def to_onnx(self, site: CallSite) -> Replacement:
        """Return the standard operator."""
        return normalised(site, self._operator, self._since)


LAYER_NORM = Norm("LayerNorm", "LayerNormalization", 17)
RMS_NORM = Norm("RMSNorm", "RMSNormalization", 23)


# Group normalisation.


class GroupNorm(Lowering):
    """https://onnx.ai/onnx/operators/onnx__GroupNormalization.html."""

    name = "GroupNorm"

    def to_onnx(self, site: CallSite) -> Replacement:
        """Return GroupNormalization-21, whose scale and bias have one element a channel; before, they had one a group."""
        norm = proved_instances(site, "GroupNormalization")
        settings = {"num_groups": norm.groups, "epsilon": norm.epsilon}
        return Replacement.one("GroupNormalization", norm.inputs, settings, since=21)

    def to_ort(self, site: CallSite) -> Replacement:
        """Raise NotLowered: onnxruntime has a kernel for instances, none on the CPU for groups."""
        del site
        raise NotLowered(
            "onnxruntime has no kernel for groups on the CPU, and one for the instances that it is made of"
        )


GROUP_NORM = GroupNorm()


# Instance normalisation: each channel of each picture.

_OPERATOR = "InstanceNormalization"


class InstanceNorm(Lowering):
    """https://onnx.ai/onnx/operators/onnx__InstanceNormalization.html, for which onnxruntime has a kernel."""

    name = "InstanceNorm"

    def to_onnx(self, site: CallSite) -> Replacement:
        """Return InstanceNormalization-6, which has one scale and one bias a channel."""
        has_operator = any(node.op_type == _OPERATOR for node in site.function)
        norm = (proved_instances if has_operator else proved_channels)(site, _OPERATOR)
        return Replacement.one(_OPERATOR, norm.inputs, {"epsilon": norm.epsilon}, since=6)


INSTANCE_NORM = InstanceNorm()


# A vector divided by its length.


class L2Norm(Lowering):
    """https://onnx.ai/onnx/operators/onnx__LpNormalization.html: x / ‖x‖, without an epsilon."""

    name = "L2Norm"

    def to_onnx(self, site: CallSite) -> Replacement:
        """Return LpNormalization-1 with p = 2."""
        axis = only_axis(site.forms[0])
        reason = "LpNormalization does not keep the length from 0, by a bound or an addend"
        (x,) = require_operator(site, lambda x: definition("LpNormalization", 1, (x,), axes=(axis,)), reason)
        require_type("LpNormalization", x, WITH_DOUBLE)
        return Replacement.one("LpNormalization", (value_of(x),), {"axis": axis, "p": 2}, since=1)


L2_NORM = L2Norm()


# A residual sum and its normalisation.

_SINCE = {"LayerNormalization": 17, "RMSNormalization": 23}


class SkipNorm(Lowering):
    """A sum and a normalisation: the standard has no operator for both.

    onnxruntime has, SkipLayerNormalization and SkipSimplifiedLayerNormalization, but on the CPU two operators beat them: of 128 rows of 768
    floats, with one thread of an EPYC, 72 µs against 498 and 46 against 114 (onnxruntime 1.31).
    """

    def __init__(self, name: str) -> None:
        self.name = name

    def to_onnx(self, site: CallSite) -> Replacement:
        """Return the sum and the normalisation, where that is a standard operator already; else both are lowered on their own."""
        nodes = list(site.function)
        if any(node.op_identifier() in site.functions for node in nodes):
            raise NotLowered(
                "no standard operator adds before it normalises, and onnxruntime's is slower than a sum and a norm"
            )
        if (
            [node.op_type for node in nodes[:1]] != ["Add"]
            or len(nodes) != 2
            or nodes[1].domain
            or nodes[1].op_type not in _SINCE
        ):
            raise NotLowered("its body is not a sum and a normalisation")
        return inlined(site, {"Add": 7, **_SINCE}, main=1)


SKIP_LAYER_NORM = SkipNorm("SkipLayerNorm")
SKIP_RMS_NORM = SkipNorm("SkipRMSNorm")
