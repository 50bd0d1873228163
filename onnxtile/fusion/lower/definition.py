"""What an operator computes, as terms: of the function by which onnx defines it, or of ours where onnx has none.

A proof that a call is an operator compares both: the terms of the matched body, and those of the definition read with the operands of the
call. A definition is read for operands of as many axes as it reduces or fewer, so what it flattens and reshapes stays as it is.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, partial
from itertools import permutations
from typing import Any

import onnx
import onnx_ir as ir

from onnxtile.fusion.lower.lowering import PRECISION, Argument, CallSite, NotLowered, Setting, provable, require_shape
from onnxtile.fusion.lower.terms import (
    REDUCTIONS,
    Poly,
    Reader,
    atom,
    inputs_of,
    number,
    reduced,
    same,
    value_of,
    variable,
)
from onnxtile.operators.table import movement_of
from onnxtile.system.runtime import Array

_DIVIDED = "f (x) => (y) { length = ReduceL2 (x) y = Div (x, length) }"
_PRODUCT = "f (a, b, c) => (y) { product = MatMul (a, b) y = Add (product, c) }"
_OURS = {"LpNormalization": _DIVIDED, "Gemm": _PRODUCT}
"""Definitions in the words of onnx's documentation, for p = 2, and for alpha = beta = 1 without transpositions."""


@lru_cache(256)
def definition(
    operator: str,
    version: int,
    operands: tuple[Poly, ...],
    settings: tuple[tuple[str, Setting], ...] = (),
    axes: tuple[int, ...] = (),
    casts: tuple[int, ...] = (),
) -> Poly:
    """Return what a standard operator computes of `operands`. Raises TermsTooLarge.

    It reduces over `axes`, whatever its attributes say. Of its Casts, only those to the element types `casts` are kept, the narrowest last.
    """
    function = _function(operator, version, len(operands), settings, casts[-1] if casts else onnx.TensorProto.FLOAT)
    given = [*operands, *[number(0.0)] * (len(function.inputs) - len(operands))]
    return _DefinitionReader(axes, casts).read(function, given, [None] * len(given))[0]


@lru_cache(256)
def _function(
    operator: str, version: int, count: int, settings: tuple[tuple[str, Setting], ...], dtype: int
) -> ir.Function:
    """Return the function that defines an operator with `count` operands of two axes and an element type."""
    node = onnx.helper.make_node(operator, [f"operand_{i}" for i in range(count)], ["result"])
    node.attribute.extend(onnx.helper.make_attribute(name, value) for name, value in settings)
    if operator in _OURS:
        proto = onnx.parser.parse_function(f'<domain: "definitions", opset_import: ["": {version}]> {_OURS[operator]}')
    else:
        proto = _of_onnx(node, version, dtype)
    del proto.output[1:]
    attributes = {attribute.name: attribute for attribute in node.attribute}
    for inner in proto.node:
        for attribute in inner.attribute:
            if attribute.ref_attr_name:
                name = attribute.name
                attribute.CopyFrom(attributes[attribute.ref_attr_name])
                attribute.name = name
    return ir.from_proto(proto)


def _of_onnx(node: onnx.NodeProto, version: int, dtype: int) -> onnx.FunctionProto:
    schema: Any = onnx.defs.get_schema(node.op_type, version, "")
    if not schema.has_context_dependent_function:
        return onnx.FunctionProto.FromString(schema.function_body.SerializeToString())
    kind = onnx.helper.make_tensor_type_proto(dtype, ["rows", "columns"]).SerializeToString()
    body = schema.get_context_dependent_function(node.SerializeToString(), [kind] * len(node.input))
    return onnx.FunctionProto.FromString(body)


class _DefinitionReader(Reader):
    """Reads a definition: reductions are over the axes of the call."""

    def __init__(self, axes: tuple[int, ...], casts: tuple[int, ...]) -> None:
        super().__init__({})
        self._axes = axes
        self._casts = casts

    def _results(self, node: ir.Node, polys: dict[ir.Value, Poly], arrays: dict[ir.Value, Array]) -> list[Poly]:
        if node.op_type != "Cast" and movement_of(node) in {"renames", "converts"} and node.inputs[0] is not None:
            return [polys[node.inputs[0]]]
        if node.op_type in REDUCTIONS and node.inputs[0] is not None:
            return [reduced(node.op_type, self._axes, 1, polys[node.inputs[0]])]
        return super()._results(node, polys, arrays)

    def _cast(self, to: int, poly: Poly) -> Poly:
        return atom("Cast", to, poly) if to in self._casts and value_of(poly) is None else poly


def is_defined_as(site: CallSite, form: Poly, wanted: Callable[[], Poly]) -> bool:
    """Tell whether a call computes the terms `wanted`, where both are of rounded constants. Raises NotLowered where they are too large."""
    with provable():
        return same(form, wanted(), site.tolerance() + PRECISION[ir.DataType.FLOAT])


def require_operator(
    site: CallSite,
    computes: Callable[..., Poly],
    reason: str,
    *,
    count: int = 1,
) -> tuple[Argument, ...]:
    """Return the `count` inputs of which the call computes the terms that `computes` returns for them. Raises NotLowered with `reason`.

    The result has the element type of all of them, and the shape of the first where it is the only one.
    """
    read = sorted(inputs_of(site.forms[0]))
    if len(site.forms) != 1 or len(read) != count:
        raise NotLowered(reason)
    for order in permutations(read):
        if is_defined_as(site, site.forms[0], partial(computes, *map(variable, order))):
            operands = tuple(site.arguments[index] for index in order)
            if any(operand.dtype != site.results[0].dtype for operand in operands):
                raise NotLowered("its inputs and its result differ in their element types")
            if count == 1:
                require_shape(site.results[0], operands[0])
            return operands
    raise NotLowered(reason)
