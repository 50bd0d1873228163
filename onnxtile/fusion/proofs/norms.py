"""Proofs of normalisations over the last axes: layer norm and RMS norm."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import onnx_ir as ir

from onnxtile.fusion.lowering import (
    FLOATS,
    HALVES,
    Argument,
    CallSite,
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
from onnxtile.fusion.proofs.axes import vector_along
from onnxtile.fusion.proofs.elementwise import value_of as value_from
from onnxtile.fusion.proofs.means import in_means
from onnxtile.fusion.proofs.new_nodes import NewNodes
from onnxtile.fusion.proofs.terms import (
    Atom,
    Monomial,
    Poly,
    array_of,
    atom,
    atom_of,
    atoms,
    mean,
    number,
    operands,
    power,
    product,
    same,
    total,
    value_of,
    variable,
)
from onnxtile.model.infer import Dims

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
class _Found:
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


def proved_norm(site: CallSite, result: Poly, operator: str, *, centred: bool) -> Norm:
    """Return the normalisation that `result`, an output of the site, is. Raises NotLowered.

    `centred` says whether the mean is taken off first, as layer norm does.
    """
    found = _found(site, _precise(site, result), operator, centred=centred)
    rank = len(found.dims)
    if found.axes != list(range(rank - len(found.axes), rank)):
        return _moved(site, found)
    axis = -len(found.axes)
    for what, part in (("scale", found.scale), ("bias", found.bias)):
        _require_vector(what, part, found.dims, axis, known_dtype(found.x))
    return Norm(found.x, axis, found.epsilon, _operand(found.scale), _operand(found.bias), found.stash)


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


def _moved(site: CallSite, found: _Found) -> Norm:
    """Return a normalisation along one axis that is not the last, as convolutions have it, with constants along that axis."""
    rank = len(found.dims)
    if len(found.axes) != 1:
        raise NotLowered(f"it normalises over {_plural(found.axes)} of {rank}, not over the last")
    (axis,) = found.axes
    parts = (("scale", found.scale), ("bias", found.bias))
    scale, bias = (None if p is None else vector_along(what, p, axis, rank, site.facts) for what, p in parts)
    for what, vector in (("scale", scale), ("bias", bias)):
        _require_vector(what, vector, (found.dims[axis],), -1, known_dtype(found.x))
    return Norm(found.x, -1, found.epsilon, scale, bias, found.stash, axis)


def proved_spatial(site: CallSite, operator: str) -> Spatial:
    """Return the normalisation of each channel over the axes after it that the site is. Raises NotLowered."""
    if len(site.forms) != 1:
        raise NotLowered("something reads its inner values")
    found = _found(site, site.forms[0], operator, centred=True)
    rank, channels = len(found.dims), found.dims[1] if len(found.dims) > 1 else None
    if found.axes != list(range(2, rank)) or not isinstance(channels, int):
        raise NotLowered(
            f"it normalises over {_plural(found.axes)} of {shown(found.dims)}, not over all after the channels"
        )
    kind = known_dtype(found.x)
    vectors = []
    for what, part, none in (("scale", found.scale, np.ones), ("bias", found.bias, np.zeros)):
        given = None if part is None else vector_along(what, part, 1, rank, site.facts)
        vectors.append(given or Literal(none(channels, kind.numpy()), kind, what))
        _require_vector(what, vectors[-1], (channels,), -1, kind)
    return Spatial(found.x, found.epsilon, *vectors)


def _found(site: CallSite, result: Poly, operator: str, *, centred: bool) -> _Found:
    result = in_means(result, site.results[-1].dims, site.tolerance())
    parts = _parts(result)
    x = site.arguments[parts.x]
    dims = require_shape(site.results[-1], x)
    scale, bias, narrowed = _affine(site, result, parts, centred=centred)
    x, stash = _source(site, x, parts, narrowed)
    require_type(operator, x, FLOATS)
    if known_dtype(x) != site.results[-1].dtype:
        raise NotLowered(f"its input is {known_dtype(x).name.lower()}, its result {site.dtype.name.lower()}")
    axes = sorted(axis % len(dims) for axis in parts.axes)
    return _Found(x, dims, axes, parts.epsilon, scale, bias, stash)


def _parts(result: Poly) -> _NormTerms:
    roots = {base for base, exponent in atoms(result) if base[0] == "sum" and exponent == -0.5}
    if len(roots) != 1:
        raise NotLowered("it does not divide by the root of one sum: epsilon may be outside of the root")
    radicand = next(operands(roots.pop()))
    means = [_atom(m) for m, coefficient in radicand if coefficient == 1 and _atom(m) is not None]
    epsilon = total(radicand, *(product(number(-1.0), frozenset({(frozenset({(m, 1.0)}), 1.0)})) for m in means if m))
    held = value_of(epsilon)
    if len(means) != 1 or means[0] is None or held is None:
        raise NotLowered("below the root is no mean plus a number")
    if means[0][0] != "ReduceMean" or means[0][2] != 1 or len(means[0]) != 4:
        raise NotLowered("the mean does not keep its axes")
    axes = means[0][1]
    assert isinstance(axes, tuple)
    index, widened = _variable(next(operands(means[0])))
    if held < 0:
        raise NotLowered("epsilon is negative")
    return _NormTerms(index, widened, axes, held)


def _atom(monomial: Monomial) -> Atom | None:
    return atom_of(frozenset({(monomial, 1.0)})) if monomial else None


def _variable(squares: Poly) -> tuple[int, int]:
    """Return the one input that the mean of squares is of, and the element type that it is cast to before (0 for none)."""
    found = {base[1] for base, _ in atoms(squares) if base[0] == "input"}
    casts = {base for base, _ in atoms(squares) if base[0] == "Cast"}
    if len(found) != 1 or len(casts) > 1:
        raise NotLowered("the mean of squares is of more than one value")
    index = int(found.pop())  # type: ignore[call-overload]
    if not casts:
        return index, 0
    cast = casts.pop()
    if next(operands(cast)) != variable(index):
        raise NotLowered("the normalisation contains a Cast")
    return index, int(cast[1])  # type: ignore[call-overload]


def _plural(axes: list[int]) -> str:
    return f"axis {axes[0]}" if len(axes) == 1 else f"the axes {axes}"


def _affine(site: CallSite, result: Poly, parts: _NormTerms, *, centred: bool) -> tuple[Part, Part, int]:
    """Return scale and bias with which `result` is the normalisation, and the element type it is cast to before them (0 for none)."""
    outer = list(_candidates(site, result, parts))
    nothing: tuple[Poly, Part] = (number(1.0), None)
    for narrowed in (0, site.dtype.value):
        core = _core(parts, narrowed, centred=centred)
        for scale in (nothing, *outer):
            for bias in (nothing, *outer):
                shift = bias[0] if bias[1] is not None else number(0.0)
                if same(result, total(product(core, scale[0]), shift), site.tolerance()):
                    return scale[1], bias[1], narrowed
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


def _core(parts: _NormTerms, narrowed: int, *, centred: bool) -> Poly:
    """Return the normalisation itself, without scale and bias."""
    x = variable(parts.x)
    if parts.widened:
        x = atom("Cast", parts.widened, x)
    if centred:
        x = total(x, product(number(-1.0), mean(parts.axes, x)))
    squares = mean(parts.axes, power(x, 2.0))
    core = product(x, power(total(squares, number(parts.epsilon)), -0.5))
    return atom("Cast", narrowed, core) if narrowed else core


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
        found = "unknown" if part.dtype is None else part.dtype.name.lower()
        raise NotLowered(f"its {what} is {found}, its input {dtype.name.lower()}")


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
    made = steps.add(NewNode(operator, (steps.transposed(x, last), *inputs), settings, since=since))
    back = steps.add(NewNode("Transpose", (made,), {"perm": tuple(last.index(axis) for axis in range(rank))}))
    return Replacement(tuple(steps.steps), (back,), made.step)
