"""Tensors as formulas of their indices: the functions of RotaryEmbedding and Attention at every index, for all sizes.

A size is a symbol, and an index a symbol below its size. Where a Concat asks on which side of a bound an index lies, the index is a symbol
that says so: `i` with the size `i + 1 + rest` lies in the first part, that size plus `i` in the second.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import onnx
import sympy
from onnx import helper, numpy_helper

Index = tuple[sympy.Expr, ...]
Numbers = list[Any]
"""A vector of sizes or conditions, each known as a formula."""


@dataclass(frozen=True)
class IndexedTensor:
    """A tensor of these `sizes`, whose element is `at` an index."""

    sizes: Index
    at: Callable[[Index], sympy.Expr]


Value = IndexedTensor | Numbers


def given(name: str, sizes: Sequence[sympy.Expr]) -> IndexedTensor:
    """Return an operand of which nothing but the sizes is known; along an axis of size 1, all indices have one element."""
    element = sympy.Function(name, real=True)
    return IndexedTensor(tuple(sizes), lambda index: element(*index))


def total(formula: sympy.Expr, index: sympy.Symbol, size: sympy.Expr) -> sympy.Expr:
    """Return the sum of a formula over all values of an index; factors without the index stand before the sum."""
    factor, rest = formula.as_independent(index, as_Add=False)
    return factor * sympy.Sum(rest, (index, 0, size - 1))


def running(size: sympy.Expr) -> sympy.Symbol:
    """Return the index over which a sum along an axis of this size runs."""
    return sympy.Symbol(f"over_{size}", integer=True, nonnegative=True)


def product(a: IndexedTensor, b: IndexedTensor) -> IndexedTensor:
    """Return the matrix product of tensors with equal axes before the last two."""
    *outer, rows, inner = a.sizes
    _require(b.sizes[:-1] == (*outer, inner), f"{a.sizes} and {b.sizes} have no matrix product")
    k = running(inner)
    return IndexedTensor(
        (*outer, rows, b.sizes[-1]),
        lambda index: total(a.at((*index[:-1], k)) * b.at((*index[:-2], k, index[-1])), k, inner),
    )


def softmax(a: IndexedTensor) -> IndexedTensor:
    """Return exp(x) over its sum along the last axis."""
    k, size = running(a.sizes[-1]), a.sizes[-1]
    return IndexedTensor(
        a.sizes, lambda index: sympy.exp(a.at(index)) / total(sympy.exp(a.at((*index[:-1], k))), k, size)
    )


def broadcast(a: IndexedTensor, sizes: Index) -> IndexedTensor:
    """Return a tensor of these sizes, where axes of size 1 are repeated and missing ones come first."""
    lead = len(sizes) - len(a.sizes)
    _require(
        all(own in (1, size) for own, size in zip(a.sizes, sizes[lead:], strict=True)), f"{a.sizes} is not {sizes}"
    )
    places = [(lead + axis, own == 1) for axis, own in enumerate(a.sizes)]
    zero = sympy.Integer(0)
    return IndexedTensor(sizes, lambda index: a.at(tuple(zero if is_one else index[axis] for axis, is_one in places)))


def elementwise(compute: Callable[..., sympy.Expr], *operands: IndexedTensor) -> IndexedTensor:
    """Return the results of a function of elements."""
    rank = max(len(one.sizes) for one in operands)
    padded = [(1,) * (rank - len(one.sizes)) + one.sizes for one in operands]
    sizes = tuple(next((size for size in axis if size != 1), sympy.Integer(1)) for axis in zip(*padded, strict=True))
    wide = [broadcast(one, sizes) for one in operands]
    return IndexedTensor(sizes, lambda index: compute(*(one.at(index) for one in wide)))


def joined(parts: Sequence[IndexedTensor], axis: int) -> IndexedTensor:
    """Return the parts one behind the other along an axis. Raises ValueError at an index of which the part is not known."""
    axis %= len(parts[0].sizes)
    whole = sum((part.sizes[axis] for part in parts), sympy.Integer(0))

    def at(index: Index) -> sympy.Expr:
        start = sympy.Integer(0)
        for part in parts:
            inside, length = index[axis] - start, part.sizes[axis]
            if (length - inside).is_positive:
                return part.at((*index[:axis], inside, *index[axis + 1 :]))
            _require(bool((inside - length).is_nonnegative), f"the part in which {index[axis]} lies is not known")
            start += length
        raise ValueError(f"{index[axis]} lies behind all parts")

    return IndexedTensor((*parts[0].sizes[:axis], whole, *parts[0].sizes[axis + 1 :]), at)


def cut(a: IndexedTensor, axis: int, start: sympy.Expr, length: sympy.Expr) -> IndexedTensor:
    """Return the elements from `start` on along an axis."""
    axis %= len(a.sizes)
    sizes = (*a.sizes[:axis], length, *a.sizes[axis + 1 :])
    return IndexedTensor(sizes, lambda index: a.at((*index[:axis], index[axis] + start, *index[axis + 1 :])))


def reshaped(a: IndexedTensor, sizes: Index) -> IndexedTensor:
    """Return a tensor with the same sizes but for those that are 1; 0 and -1 mean as for Reshape. Raises ValueError for other sizes."""
    sizes = tuple(a.sizes[axis] if size == 0 else size for axis, size in enumerate(sizes))
    rest = sympy.prod(a.sizes) / sympy.prod([size for size in sizes if size != -1])
    sizes = tuple(rest if size == -1 else size for size in sizes)
    own = [axis for axis, size in enumerate(a.sizes) if size != 1]
    kept = [axis for axis, size in enumerate(sizes) if size != 1]
    _require([a.sizes[axis] for axis in own] == [sizes[axis] for axis in kept], f"{a.sizes} is not {sizes}")
    place = dict(zip(own, kept, strict=True))
    zero = sympy.Integer(0)
    return IndexedTensor(
        sizes,
        lambda index: a.at(tuple(index[place[axis]] if axis in place else zero for axis in range(len(a.sizes)))),
    )


def evaluated(op: str, version: int, operands: Mapping[str, IndexedTensor], **attributes: Any) -> IndexedTensor:
    """Return the first result of the function by which onnx defines an operator. A float attribute may be a symbol with a value.

    Raises ValueError for an operator, or a use of one, that is not known here.
    """
    numbers = {name: value[1] if isinstance(value, tuple) else value for name, value in attributes.items()}
    symbols = {value[1]: value[0] for value in attributes.values() if isinstance(value, tuple)}
    node = helper.make_node(op, list(operands), ["result"], **numbers)
    float_type = onnx.TensorProto.FLOAT
    types = [helper.make_tensor_type_proto(float_type, list(map(str, one.sizes))) for one in operands.values()]
    schema = onnx.defs.get_schema(op, version, "")
    told = [one.SerializeToString() for one in types]
    function = onnx.FunctionProto.FromString(schema.get_context_dependent_function(node.SerializeToString(), told))
    values: dict[str, Value] = dict(zip(function.input, operands.values(), strict=False))
    for inner in function.node:
        told_of = {one.name: helper.get_attribute_value(one) for one in inner.attribute}
        made = _computed(inner.op_type, [values.get(name) for name in inner.input], told_of, symbols, len(inner.output))
        values.update(zip(inner.output, made, strict=True))
    result = values[function.output[0]]
    assert isinstance(result, IndexedTensor)
    return result


_ELEMENTWISE: Mapping[str, Callable[..., Any]] = {
    "Add": lambda a, b: a + b,
    "Sub": lambda a, b: a - b,
    "Mul": lambda a, b: a * b,
    "Div": lambda a, b: a / b,
    "Mod": sympy.Mod,
    "Sqrt": sympy.sqrt,
    "Not": lambda a: not a,
    "And": lambda a, b: a and b,
    "Equal": lambda a, b: bool(a == b),
    "Where": lambda condition, a, b: a if condition else b,
}
_SAME = {"Identity", "Cast", "CastLike"}


def _computed(op: str, of: list[Any], told: Mapping[str, Any], symbols: Mapping[float, Any], count: int) -> list[Value]:
    """Return the `count` results of a node with the operands `of` and the attributes `told`."""
    if op == "Constant":
        return [_constant(numpy_helper.to_array(told["value"]), symbols)]
    if op in _SAME:
        return [of[0]]
    if op == "Shape":
        return [list(of[0].sizes[told.get("start", 0) : told.get("end", len(of[0].sizes))])]
    if op == "Split":
        return _split(of, told, count)
    if op == "Concat":
        return [joined(of, told["axis"]) if isinstance(of[0], IndexedTensor) else [one for part in of for one in part]]
    if op in _ELEMENTWISE:
        return [_of_elements(op, of)]
    return [_MOVED[op](of, told)] if op in _MOVED else _unknown(op)


def _constant(array: Any, symbols: Mapping[float, Any]) -> Value:
    flat = array.ravel().tolist()
    if array.dtype.kind != "f":
        return [sympy.Integer(one) for one in flat]
    known = {float(numpy_helper.to_array(helper.make_tensor("", 1, [], [one]))): name for one, name in symbols.items()}
    numbers = [known.get(one, sympy.nsimplify(one) if abs(one) != float("inf") else sympy.sympify(one)) for one in flat]
    return numbers if len(numbers) > 1 else IndexedTensor((), lambda _: numbers[0])


def _split(of: list[Any], told: Mapping[str, Any], count: int) -> list[Value]:
    whole = of[0].sizes[told["axis"]]
    lengths = of[1] if len(of) > 1 else [whole / count] * count
    starts = [sum(lengths[:at], sympy.Integer(0)) for at in range(count)]
    return [cut(of[0], told["axis"], start, length) for start, length in zip(starts, lengths, strict=True)]


def _of_elements(op: str, of: list[Any]) -> Value:
    """Return the result of an operator on elements, of sizes or of tensors; conditions choose a whole operand."""
    if op == "Where" and isinstance(of[0], list):
        return (
            list(of[1] if of[0] == [True] else of[2])
            if isinstance(of[1], list)
            else of[1]
            if of[0] == [True]
            else of[2]
        )
    if all(isinstance(one, list) for one in of):
        return [_ELEMENTWISE[op](*ones) for ones in zip(*of, strict=True)]
    if op == "Equal":
        return [False]  # no row of the mask hides all: the lowering demands it
    return elementwise(_ELEMENTWISE[op], *map(_single, of))


def _single(of: Value) -> IndexedTensor:
    """Return a vector of one number as a tensor."""
    if isinstance(of, IndexedTensor):
        return of
    (number,) = of
    return IndexedTensor((), lambda _: number)


def _transposed(of: list[Any], told: Mapping[str, Any]) -> Value:
    order = list(told["perm"])
    sizes = tuple(of[0].sizes[axis] for axis in order)
    return IndexedTensor(sizes, lambda index: of[0].at(tuple(index[order.index(axis)] for axis in range(len(order)))))


def _unsqueezed(of: list[Any], _told: Mapping[str, Any]) -> Value:
    (axis,) = of[1]
    return reshaped(of[0], (*of[0].sizes[: int(axis)], sympy.Integer(1), *of[0].sizes[int(axis) :]))


def _sliced(of: list[Any], _told: Mapping[str, Any]) -> Value:
    (start,), (end,), (axis,) = of[1:]
    _require(end == of[0].sizes[int(axis)], "a Slice stops before the end of its operand")
    return cut(of[0], int(axis), start, end - start)


def _filled(sizes: Numbers, told: Mapping[str, Any]) -> IndexedTensor:
    number = sympy.nsimplify(numpy_helper.to_array(told["value"]).item()) if "value" in told else sympy.Integer(0)
    return IndexedTensor(tuple(sizes), lambda _: number)


_MOVED: Mapping[str, Callable[[list[Any], Mapping[str, Any]], Value]] = {
    "Transpose": _transposed,
    "Unsqueeze": _unsqueezed,
    "Slice": _sliced,
    "Reshape": lambda of, _: reshaped(of[0], tuple(of[1])),
    "Expand": lambda of, _: broadcast(of[0], tuple(of[1])),
    "ConstantOfShape": lambda of, told: _filled(of[0], told),
    "MatMul": lambda of, _: product(*of),
    "Softmax": lambda of, _: softmax(of[0]),
    "ReduceMax": lambda of, _: given("largest", (*of[0].sizes[:-1], sympy.Integer(1))),
}


def _unknown(op: str) -> list[Value]:
    raise ValueError(f"the operator {op} has no formula of indices here")


def _require(holds: bool, reason: str) -> None:
    if not holds:
        raise ValueError(reason)


def _sizes(names: str) -> tuple[sympy.Symbol, ...]:
    found: tuple[sympy.Symbol, ...] = sympy.symbols(names, integer=True, positive=True)
    return found


def is_rotary_embedding() -> bool:
    """Prove that x · cos + (-x₂, x₁) · sin, whose cosines and sines are the same for both halves, is RotaryEmbedding-23."""
    batch, heads, length = _sizes("batch heads length")
    i, rest = sympy.symbols("i rest", integer=True, nonnegative=True)
    half = i + rest + 1
    x = given("x", (batch, heads, length, 2 * half))
    caches = [given(name, (batch, length, half)) for name in ("cos", "sin")]
    both = [reshaped(joined([cache, cache], -1), (batch, sympy.Integer(1), length, 2 * half)) for cache in caches]
    minus = elementwise(lambda a: -a, cut(x, -1, half, half))
    turned = joined([minus, cut(x, -1, sympy.Integer(0), half)], -1)
    demanded = elementwise(lambda a, c, b, s: a * c + b * s, x, both[0], turned, both[1])
    operands = dict(zip("xcs", (x, *caches), strict=True))
    defined = evaluated("RotaryEmbedding", 23, operands, interleaved=0)
    here = sympy.symbols("b h t", integer=True, nonnegative=True)
    places = [(*here, i), (*here, half + i)]
    same = [sympy.expand(demanded.at(place) - defined.at(place)) == 0 for place in places]
    return demanded.sizes == defined.sizes and all(same)


def is_attention() -> bool:
    """Prove that softmax(scale · q kᵀ + mask) v, with any axes of the mask repeated and without one, is Attention-23 of equal heads.

    Without an axis of heads, it is that of one head. No row of the mask hides all keys: the lowering refuses such a mask.
    """
    batch, heads, queries, keys = _sizes("batch heads queries keys")
    one = sympy.Integer(1)
    masks = [(first, second, queries, keys) for first in (one, batch) for second in (one, heads)]
    is_deep = all(_is_attention_of((batch, heads), mask) for mask in (None, *masks))
    return is_deep and _is_attention_of((batch,), None, q_num_heads=1, kv_num_heads=1)


def _is_attention_of(outer: Index, masked: Index | None, **attributes: int) -> bool:
    queries, keys, size, width = _sizes("queries keys size width")
    scale = sympy.Symbol("scale", positive=True)
    q, k, v = given("q", (*outer, queries, size)), given("k", (*outer, keys, size)), given("v", (*outer, keys, width))
    across = IndexedTensor((*outer, size, keys), lambda at: k.at((*at[:-2], at[-1], at[-2])))
    scores = elementwise(lambda a: scale * a, product(q, across))
    mask = [] if masked is None else [given("mask", masked)]
    demanded = product(softmax(elementwise(lambda *terms: sum(terms), scores, *mask)), v)
    operands = dict(zip("qkvm", (q, k, v, *mask), strict=False))
    defined = evaluated("Attention", 23, operands, scale=(scale, 0.375), **attributes)
    place = sympy.symbols("b h t e", integer=True, nonnegative=True)[-len(defined.sizes) :]
    return demanded.sizes == defined.sizes and bool(demanded.at(place) == defined.at(place))
