"""The result of a function body as a polynomial in its inputs, so that every way to write a formula reads the same.

Sums and products are multiplied out; square roots, reciprocals and quotients are powers; a factor that is no number and no power
is an atom: an input, a constant tensor, or an operator applied to polynomials. Two bodies that compute the same by the laws of
arithmetic have equal polynomials. A proof compares a polynomial with that of the target.

Element-wise operators broadcast, so a polynomial says nothing about shapes: the caller compares those of the site. Nor does
it say where a result was rounded, save for Cast, which is an operator like any other.
"""

from __future__ import annotations

import ast
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from typing import TypeAlias

import ml_dtypes
import numpy as np
import onnx_ir as ir

from onnxtile.model.constants import constant_array
from onnxtile.system.runtime import Array

Atom: TypeAlias = tuple[Hashable, ...]
"""Its kind, then what tells it from others of its kind; polynomials among these are its operands."""
Monomial: TypeAlias = frozenset[tuple[Atom, float]]
"""Atoms and their exponents."""
Poly: TypeAlias = frozenset[tuple[Monomial, float]]
"""Monomials and their coefficients, none of which is 0."""

_MOST_MONOMIALS = 64
_MOST_EXPONENT = 4
REDUCTIONS = {"ReduceMean", "ReduceSum", "ReduceMax", "ReduceMin", "ReduceL2"}
_WIDE = {ir.DataType.FLOAT.value, ir.DataType.DOUBLE.value}


class TermsTooLarge(Exception):
    """A polynomial with more monomials than any formula that is looked for."""


def number(value: float) -> Poly:
    """Return the polynomial that is a number."""
    return frozenset({(frozenset(), float(value))}) if value else frozenset()


def atom(kind: str, *parts: Hashable) -> Poly:
    """Return the polynomial that is one atom: `kind` applied to `parts`."""
    return frozenset({(frozenset({((kind, *parts), 1.0)}), 1.0)})


def variable(index: int) -> Poly:
    """Return the polynomial that is an input of the function."""
    return atom("input", index)


def total(*polys: Poly) -> Poly:
    """Return the sum of `polys`."""
    terms: dict[Monomial, float] = {}
    for poly in polys:
        for monomial, coefficient in poly:
            terms[monomial] = terms.get(monomial, 0.0) + coefficient
    if len(terms) > _MOST_MONOMIALS:
        raise TermsTooLarge
    return frozenset((monomial, coefficient) for monomial, coefficient in terms.items() if coefficient)


def product(*polys: Poly) -> Poly:
    """Return the product of `polys`, multiplied out."""
    result = number(1.0)
    for poly in polys:
        if len(result) * len(poly) > _MOST_MONOMIALS:
            raise TermsTooLarge
        result = total(*(_times(a, b) for a in result for b in poly))
    return result


def _times(a: tuple[Monomial, float], b: tuple[Monomial, float]) -> Poly:
    exponents = dict(a[0])
    for factor, exponent in b[0]:
        exponents[factor] = exponents.get(factor, 0.0) + exponent
    monomial = frozenset((factor, exponent) for factor, exponent in exponents.items() if exponent)
    return frozenset({(monomial, a[1] * b[1])}) if a[1] * b[1] else frozenset()


def power(poly: Poly, exponent: float) -> Poly:
    """Return `poly` to the power of a number: multiplied out where the exponent is a small whole number.

    (aᵇ)ᶜ becomes aᵇᶜ only where that holds for every real a: for a whole c, or b = -1.
    """
    if exponent == int(exponent) and 0 <= exponent <= _MOST_EXPONENT:
        return product(*[poly] * int(exponent))
    if len(poly) != 1:
        return atom_power(("sum", poly), exponent)
    (monomial, coefficient), whole = next(iter(poly)), exponent == int(exponent)
    if coefficient < 0 and not whole:
        return atom_power(("sum", poly), exponent)
    if not monomial:
        return number(coefficient**exponent)
    if whole or all(inner == -1 for _, inner in monomial):
        raised = frozenset((factor, inner * exponent) for factor, inner in monomial)
        return frozenset({(raised, coefficient**exponent)})
    (factor, inner), single = next(iter(monomial)), len(monomial) == 1
    if single and inner == 1:
        return frozenset({(frozenset({(factor, exponent)}), coefficient**exponent)})
    return atom_power(("sum", poly), exponent)


def atom_power(base: Atom, exponent: float) -> Poly:
    """Return an atom to the power of a number."""
    return frozenset({(frozenset({(base, exponent)}), 1.0)})


def value_of(poly: Poly) -> float | None:
    """Return the number that `poly` is; None where it is none."""
    if not poly:
        return 0.0
    (monomial, coefficient), *rest = poly
    return coefficient if not monomial and not rest else None


def atom_of(poly: Poly) -> Atom | None:
    """Return the atom that `poly` is, with coefficient and exponent 1; None where it is something else."""
    if len(poly) != 1:
        return None
    monomial, coefficient = next(iter(poly))
    if coefficient != 1 or len(monomial) != 1:
        return None
    base, exponent = next(iter(monomial))
    return base if exponent == 1 else None


def atoms(poly: Poly) -> Iterator[tuple[Atom, float]]:
    """Yield every atom of `poly` and its exponent, those inside of other atoms included, as often as they occur."""
    for monomial, _ in poly:
        for base, exponent in monomial:
            yield base, exponent
            for part in operands(base):
                yield from atoms(part)


def operands(base: Atom) -> Iterator[Poly]:
    """Yield the polynomials that an atom is applied to."""
    yield from (part for part in base if isinstance(part, frozenset))


def inputs_of(poly: Poly) -> set[int]:
    """Return the indices of the inputs that `poly` reads."""
    return {int(base[1]) for base, _ in atoms(poly) if base[0] == "input"}  # type: ignore[call-overload]


def same(a: Poly, b: Poly, tolerance: float) -> bool:
    """Tell whether `a` and `b` are equal, their coefficients and exponents within `tolerance` relative to their size."""
    if len(a) != len(b):
        return False
    left = list(b)
    for monomial, coefficient in a:
        counterpart = next(
            (t for t in left if _close(coefficient, t[1], tolerance) and _alike(monomial, t[0], tolerance)), None
        )
        if counterpart is None:
            return False
        left.remove(counterpart)
    return True


def _alike(a: Monomial, b: Monomial, tolerance: float) -> bool:
    if len(a) != len(b):
        return False
    left = list(b)
    for base, exponent in a:
        counterpart = next((t for t in left if exponent == t[1] and _same_atom(base, t[0], tolerance)), None)
        if counterpart is None:
            return False
        left.remove(counterpart)
    return True


def _same_atom(a: Atom, b: Atom, tolerance: float) -> bool:
    if len(a) != len(b):
        return False
    return all(
        same(p, q, tolerance) if isinstance(p, frozenset) and isinstance(q, frozenset) else p == q
        for p, q in zip(a, b, strict=True)
    )


def _close(a: float, b: float, tolerance: float) -> bool:
    return a == b or abs(a - b) <= tolerance * abs(b)


class Reader:
    """Reads function bodies. `functions` are those of the model: a call of one of them is read through.

    `native` is the element type of all inputs, where they share one: a Cast to it changes nothing, nor does one to a wider type and
    back. `loose` leaves out every Cast to it or to a wider one: for operators that compute in float whatever they are given.
    """

    def __init__(
        self,
        functions: Mapping[ir.OperatorIdentifier, ir.Function],
        native: ir.DataType | None = None,
        *,
        loose: bool = False,
    ) -> None:
        self._functions = functions
        self._native = native
        self._loose = loose

    def read(self, function: ir.Function, arguments: Sequence[Poly], known: Sequence[Array | None]) -> list[Poly]:
        """Return the terms of the outputs of `function`, from the terms of its inputs and the elements of constant ones.

        Raises TermsTooLarge.
        """
        polys = dict(zip(function.inputs, arguments, strict=True))
        arrays = {v: array for v, array in zip(function.inputs, known, strict=True) if array is not None}
        for node in function:
            polys.update(zip(node.outputs, self._results(node, polys, arrays), strict=True))
        return [polys[value] for value in function.outputs]

    def _results(self, node: ir.Node, polys: dict[ir.Value, Poly], arrays: dict[ir.Value, Array]) -> list[Poly]:
        if node.op_type == "Constant" and not node.domain:
            array = constant_array(node)
            arrays[node.outputs[0]] = array
            return [constant(array)]
        inner = self._functions.get(node.op_identifier())
        reads = [None if value is None else polys[value] for value in node.inputs]
        known = [None if value is None else arrays.get(value) for value in node.inputs]
        if inner is not None and len(inner.inputs) == len(node.inputs) and None not in reads:
            return self.read(inner, [poly for poly in reads if poly is not None], known)
        if node.op_type == "CastLike" and reads[0] is not None and value_of(reads[0]) is not None:
            return [reads[0]]
        if node.op_type == "Cast" and reads[0] is not None:
            return [self._cast(node.attributes.get_int("to", 0), reads[0])]
        return [_operation(node, reads, known, i) for i in range(len(node.outputs))]

    def _cast(self, to: int, poly: Poly) -> Poly:
        inner = any(base[0] == "Cast" for base, _ in atoms(poly))
        back = self._native is not None and to == self._native.value
        if value_of(poly) is not None or (back and not inner) or (self._loose and (back or to in _WIDE)):
            return poly
        outer = atom_of(poly)
        if back and outer is not None and outer[0] == "Cast" and outer[1] in _WIDE:
            (source,) = operands(outer)
            if not any(base[0] == "Cast" for base, _ in atoms(source)):
                return source
        return atom("Cast", to, poly)


def constant(array: Array) -> Poly:
    """Return a constant tensor: a number where it has one element, else an atom."""
    if array.size == 1 and array.dtype.kind not in "OSU":
        return number(float(array.reshape(())))
    return atom("constant", array.dtype.name, array.shape, array.tobytes())


def array_of(base: Atom) -> Array:
    """Return the elements of an atom that is a constant tensor."""
    _, name, shape, data = base
    dtype = np.dtype(ml_dtypes.bfloat16 if name == "bfloat16" else str(name))
    array: Array = np.frombuffer(data, dtype).reshape(shape)  # type: ignore[call-overload]
    return array


def _operation(node: ir.Node, reads: list[Poly | None], known: list[Array | None], output: int) -> Poly:
    operands = [poly for poly in reads if poly is not None]
    if not node.domain and len(operands) == len(reads):
        arithmetic = _arithmetic(node.op_type, operands)
        if arithmetic is not None:
            return arithmetic
    if node.op_type in REDUCTIONS:
        return _reduction(node, operands, known)
    if node.op_type == "Clip":
        return _clip(node, reads)
    if node.op_type == "HardSigmoid":
        alpha, beta = (node.attributes.get_float(name, default) for name, default in (("alpha", 0.2), ("beta", 0.5)))
        return clip(total(product(number(alpha), operands[0]), number(beta)), 0.0, 1.0)
    if node.op_type == "Softmax":
        return atom("Softmax", node.attributes.get_int("axis", -1), operands[0])
    if node.op_type == "MatMul" and len(operands) == 2:
        return matmul(*operands)
    return atom(
        node.op_type,
        node.domain,
        node.overload,
        output,
        _attributes(node),
        *(r if r is not None else "" for r in reads),
    )


def _arithmetic(op: str, operands: list[Poly]) -> Poly | None:
    if op in {"Add", "Sum"}:
        return total(*operands)
    if op == "Mul":
        return product(*operands)
    if op == "Sub":
        return total(operands[0], product(number(-1.0), operands[1]))
    if op == "Div":
        return product(operands[0], power(operands[1], -1.0))
    return _unary(op, operands)


def _unary(op: str, operands: list[Poly]) -> Poly | None:
    if op == "Neg":
        return product(number(-1.0), operands[0])
    if op == "Sqrt":
        return power(operands[0], 0.5)
    if op == "Reciprocal":
        return power(operands[0], -1.0)
    if op == "Pow":
        exponent = value_of(operands[1])
        return None if exponent is None else power(operands[0], exponent)
    if op == "Exp":
        return product(*(atom(op, frozenset({term})) for term in operands[0]))
    if op in {"Erf", "Tanh", "Sigmoid", "Softplus", "Relu"}:
        return atom(op, operands[0])
    return operands[0] if op == "Identity" else None


def matmul(a: Poly, b: Poly) -> Poly:
    """Return the matrix product: a number by which a factor is multiplied multiplies the product."""
    scale = 1.0
    bare = []
    for poly in (a, b):
        coefficient = next(iter(poly))[1] if len(poly) == 1 else 1.0
        scale *= coefficient
        bare.append(poly if coefficient == 1.0 else product(number(1.0 / coefficient), poly))
    return product(number(scale), atom("MatMul", *bare))


def mean(axes: tuple[int, ...], poly: Poly) -> Poly:
    """Return the mean over `axes`, which stay as axes of length 1."""
    return reduced("ReduceMean", axes, 1, poly)


def reduced(kind: str, axes: tuple[int, ...], keepdims: int, poly: Poly) -> Poly:
    """Return a reduction over `axes`: sums and means term by term, times the factors that are the same along these axes.

    A length is the root of a sum of squares. So a variance is E[x²] - E[x]², however it is written.
    """
    if keepdims != 1 or kind not in {"ReduceMean", "ReduceSum", "ReduceL2"}:
        return atom(kind, axes, keepdims, poly)
    if kind == "ReduceL2":
        return power(reduced("ReduceSum", axes, 1, product(poly, poly)), 0.5)
    terms = []
    for monomial, coefficient in poly:
        even = frozenset(factor for factor in monomial if _is_even(factor[0], axes))
        rest = frozenset({(monomial - even, 1.0)})
        inner = rest if kind == "ReduceMean" and even == monomial else atom(kind, axes, 1, rest)
        terms.append(product(frozenset({(even, coefficient)}), inner))
    return total(*terms)


def _is_even(base: Atom, axes: tuple[int, ...]) -> bool:
    """Tell whether an atom is the same along `axes`: reduced over them, or a function of each element (kind and operand) of such atoms."""
    if base[0] in REDUCTIONS:
        return len(base) == 4 and base[1:3] == (axes, 1)
    factors = [inner for part in operands(base) for monomial, _ in part for inner, _ in monomial]
    is_function = len(base) == 2 and isinstance(base[1], frozenset) and base[0] != _TURNED
    return is_function and all(_is_even(inner, axes) for inner in factors)


def _reduction(node: ir.Node, operands: list[Poly], known: list[Array | None]) -> Poly:
    axes: tuple[int, ...] | None = None
    if "axes" in node.attributes:
        axes = tuple(node.attributes["axes"].as_ints())
    elif len(known) > 1:
        held = known[1]
        axes = None if held is None else tuple(int(axis) for axis in np.ravel(held))
    keepdims = node.attributes.get_int("keepdims", 1)
    if axes is None:
        return atom(node.op_type, "all or unknown axes", _attributes(node), *operands)
    return reduced(node.op_type, axes, keepdims, operands[0])


def _clip(node: ir.Node, reads: list[Poly | None]) -> Poly:
    low, high = (_bound(node, name, reads, i) for i, name in enumerate(("min", "max"), start=1))
    assert reads[0] is not None
    if low is None or high is None:
        return atom("Clip", _attributes(node), *(r if r is not None else "" for r in reads))
    return clip(reads[0], low, high)


def _bound(node: ir.Node, name: str, reads: list[Poly | None], index: int) -> float | None:
    if name in node.attributes:
        return node.attributes[name].as_float()
    poly = reads[index] if index < len(reads) else None
    return None if poly is None else value_of(poly)


def clip(poly: Poly, low: float, high: float) -> Poly:
    """Return `poly` between two numbers; from 0 on, scaled so that the upper one is 1."""
    if low == 0 and high > 0:
        return product(number(high), atom("Clip", 0.0, 1.0, product(number(1.0 / high), poly)))
    return atom("Clip", low, high, poly)


def _attributes(node: ir.Node) -> Hashable:
    items: Iterable[ir.Attr] = node.attributes.values()
    return tuple(sorted((a.name, repr(a.value)) for a in items))


# Exchanges of the last two axes in a formula, moved inwards: (A B)ᵀ = Bᵀ Aᵀ, and (Aᵀ)ᵀ = A.

_PERMS = {(0, 2, 1), (0, 1, 3, 2)}
_TURNED = "turned"


def turned_inwards(poly: Poly) -> Poly:
    """Return `poly` with each Transpose that exchanges the last two axes moved inwards, to what is no product. Raises TermsTooLarge."""
    return total(
        *(
            product(number(coefficient), *(_inner(base, exponent) for base, exponent in monomial))
            for monomial, coefficient in poly
        )
    )


def turned(poly: Poly) -> Poly:
    """Return `poly` with its last two axes exchanged."""
    terms = []
    for monomial, coefficient in poly:
        base, exponent = next(iter(monomial), (None, 1.0))
        if base is None or len(monomial) != 1 or exponent != 1:
            return atom(_TURNED, poly)
        terms.append(product(number(coefficient), _turned_atom(base)))
    return total(*terms)


def unturned(poly: Poly) -> Poly | None:
    """Return what is turned in `poly`; None where `poly` is nothing that is turned."""
    base = atom_of(poly)
    return next(operands(base)) if base is not None and base[0] == _TURNED else None


def _turned_atom(base: Atom) -> Poly:
    if base[0] == _TURNED:
        return next(operands(base))
    if base[0] == "MatMul":
        a, b = operands(base)
        return matmul(turned(b), turned(a))
    return atom(_TURNED, atom_power(base, 1.0))


def _inner(base: Atom, exponent: float) -> Poly:
    if base[0] == "sum":
        return power(turned_inwards(next(operands(base))), exponent)
    parts = tuple(turned_inwards(part) if isinstance(part, frozenset) else part for part in base)
    if base[0] == "MatMul" and exponent == 1:
        return matmul(*(part for part in parts if isinstance(part, frozenset)))
    if base[0] == "Transpose" and exponent == 1 and _exchanges(base):
        return turned(next(operands(parts)))
    return atom_power(parts, exponent)


def _exchanges(base: Atom) -> bool:
    """Return whether a Transpose exchanges the last two of three or four axes."""
    attributes = dict(base[4]) if isinstance(base[4], tuple) else {}
    return ast.literal_eval(attributes.get("perm", "()")) in _PERMS
