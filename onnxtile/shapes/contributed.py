"""Shapes of operators that onnxruntime has and ONNX lacks, by onnxruntime's own inference.

onnxruntime loads a model of each such node alone, with the shapes and the few known numbers of its operands. Loading infers the results by
the operator's own schema; nothing is run. Other engines have rules of their own for these operators, some of them wrong. A shape that
onnxruntime does not infer is open.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import cache, lru_cache
from typing import TypeAlias

import numpy as np
import onnx
import onnx_ir as ir
from onnx import helper, numpy_helper

from onnxtile.model.known import NOTHING, Known
from onnxtile.model.opset import Opsets
from onnxtile.model.topology import all_nodes, has_body, opset_in
from onnxtile.operators.node_view import Dims
from onnxtile.system.dataclass import dataclass
from onnxtile.system.errors import ModelError
from onnxtile.system.runtime import Array, contrib_schemas, inferred_results

# Shapes that onnxruntime's own operators make where its CPU has no kernel: it then infers nothing of them.
#
# By https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md. T are tokens of all sequences, one after the other.

OperandDims: TypeAlias = Sequence[Dims | None]
"""The dimensions of the operands of a node, in order; None for one that is left out or not known."""


def result_dims(node: ir.Node, operands: OperandDims) -> list[Dims | None]:
    """Return the dimensions of the results of `node`, an operator of onnxruntime; None where they are not known."""
    rule = _RULES.get(node.op_type) if node.domain == "com.microsoft" else None
    dims = [] if rule is None else rule(node, operands)
    return [dims[index] if index < len(dims) else None for index in range(len(node.outputs))]


def _dims(operands: OperandDims, index: int, rank: int | None = None) -> Dims | None:
    dims = operands[index] if index < len(operands) else None
    return dims if rank is None or dims is None or len(dims) == rank else None


def _same(*indices: int) -> Callable[[ir.Node, OperandDims], list[Dims | None]]:
    """Return a rule by which each result has the dimensions of the operand at one of `indices`."""
    return lambda _node, operands: [_dims(operands, index) for index in indices]


def _packed_attention(node: ir.Node, operands: OperandDims) -> list[Dims | None]:
    """PackedAttention: (T, width) by weights (width, queries + keys + values) gives (T, values)."""
    tokens, weights = _dims(operands, 0, 2), _dims(operands, 1, 2)
    if tokens is None or weights is None:
        return []
    sizes = node.attributes.get_ints("qkv_hidden_sizes", ())
    width = weights[1] // 3 if isinstance(weights[1], int) else None
    return [(tokens[0], sizes[2] if len(sizes) == 3 else width)]


def _packed_heads(_node: ir.Node, operands: OperandDims) -> list[Dims | None]:
    """PackedMultiHeadAttention: values (T, width) give (T, width), packed operands (T, heads, 3, head) give (T, heads × head)."""
    values, packed = _dims(operands, 2, 2), _dims(operands, 0, 4)
    if values is not None:
        return [values]
    if packed is None or not isinstance(packed[1], int) or not isinstance(packed[3], int):
        return []
    return [(packed[0], packed[1] * packed[3])]


def _remove_padding(_node: ir.Node, operands: OperandDims) -> list[Dims | None]:
    """RemovePadding: (batch, length, width) gives tokens of which only the data know the number, and their places."""
    padded = _dims(operands, 0, 3)
    if padded is None:
        return []
    batch = padded[0] + 1 if isinstance(padded[0], int) else None
    return [(None, padded[2]), (padded[0], padded[1]), (batch,), (1,)]


def _restore_padding(_node: ir.Node, operands: OperandDims) -> list[Dims | None]:
    """RestorePadding: tokens (T, width) at the places (batch, length) give (batch, length, width)."""
    tokens, places = _dims(operands, 0, 2), _dims(operands, 1, 2)
    return [] if tokens is None or places is None else [(*places, tokens[1])]


def _paged_attention(node: ir.Node, operands: OperandDims) -> list[Dims | None]:
    """PagedAttention: queries (T, width), with keys and values or packed with these, and two caches, which it hands out."""
    queries, keys = _dims(operands, 0, 2), _dims(operands, 1)
    cache = [_dims(operands, index, 4) for index in (3, 4)]
    if keys is not None:
        return [queries, *cache]
    head = None if cache[0] is None else cache[0][3]
    heads = node.attributes.get_int("num_heads", 0)
    width = heads * head if isinstance(head, int) and heads else None
    return [None if queries is None else (queries[0], width), *cache]


_RULES: Mapping[str, Callable[[ir.Node, OperandDims], list[Dims | None]]] = {
    "PackedAttention": _packed_attention,
    "PackedMultiHeadAttention": _packed_heads,
    "RemovePadding": _remove_padding,
    "RestorePadding": _restore_padding,
    "PagedAttention": _paged_attention,
    **dict.fromkeys(("BiasAdd", "BiasSoftmax", "GroupNorm", "LongformerAttention", "QOrderedGelu"), _same(0)),
    "SkipGroupNorm": _same(0, 0),
}


_GUESSED = {("com.microsoft", "GroupQueryAttention"): 6}
"""The operand without whose number onnxruntime guesses: it takes the cache of keys to be long enough for all tokens."""

_NUMBERS = (1, 2**30)
"""Two such numbers: what is the same with both does not depend on it."""


@dataclass(frozen=True)
class KnownOperand:
    """An operand: its element type, its dimensions, and its elements where these are known and few."""

    dtype: ir.DataType | None
    dims: Dims | None
    number: Array | None = None


def contributed_operators(model: ir.Model) -> set[tuple[str, str]]:
    """Return domain and name of each operator in `model` that onnxruntime has, and ONNX has not in the version imported.

    A function of the same name in the model counts for nothing: onnxruntime takes its own operator.
    """
    versions = Opsets(model)
    used = {(node.graph, node.domain, node.op_type) for node in all_nodes(model)}
    return {(d, name) for graph, d, name in used if _is_contributed(name, d, _version(versions.opsets_of(graph), d))}


def _version(imports: Mapping[str, int], domain: str) -> int:
    return (imports.get(domain, 0) if domain else opset_in(imports)) or 1


def _is_contributed(op_type: str, domain: str, version: int) -> bool:
    schemas = [] if _is_standard(op_type, domain, version) else contrib_schemas(op_type, domain)
    return any(schema.since_version <= version for schema in schemas)


def fits_in_function(node: ir.Node, opsets: Mapping[str, int]) -> bool:
    """Return whether `node`, read with the imports `opsets`, may be in a local function.

    onnxruntime crashes on a function with an operator of the standard domain that this version of ONNX lacks: it takes such an operator,
    as LayerNormalization in opset 14, in graphs alone.
    """
    return bool(node.domain) or _is_standard(node.op_type, "", _version(opsets, ""))


@cache
def _is_standard(op_type: str, domain: str, version: int) -> bool:
    try:
        onnx.defs.get_schema(op_type, version, domain)
    except onnx.defs.SchemaError:
        return False
    return True


def results(node: ir.Node, operands: Sequence[KnownOperand | None], opsets: Mapping[str, int]) -> list[Known]:
    """Return the types and shapes that onnxruntime infers for the outputs of `node` from its `operands`, one for each of its inputs.

    It refuses a node for which it has no kernel on this processor. Then element types follow from the operator's schema, and some shapes
    from `result_dims`.
    """
    if has_body(node):
        return [NOTHING] * len(node.outputs)
    index = _GUESSED.get((node.domain, node.op_type), len(operands))
    decider = operands[index] if index < len(operands) else None
    if decider is None or decider.number is not None:
        return _asked(node, operands, opsets)

    def guesses(read: Sequence[KnownOperand | None]) -> list[Known]:
        both = (_asked(node, [*read[:index], _numbered(decider, n), *read[index + 1 :]], opsets) for n in _NUMBERS)
        return [_common(first, second) for first, second in zip(*both, strict=True)]

    # Of an open dimension, onnxruntime says the same with every number, but not of its sizes.
    return [
        _only_open(first, second)
        for first, second in zip(guesses(operands), guesses(list(map(_sized, operands))), strict=True)
    ]


def _sized(operand: KnownOperand | None) -> KnownOperand | None:
    """Return `operand` with the size 1 for each open dimension."""
    if operand is None or operand.dims is None:
        return operand
    return replace(operand, dims=tuple(dim if isinstance(dim, int) else 1 for dim in operand.dims))


def _only_open(known: Known, sized: Known) -> Known:
    """Return `known` without those dimensions that are not known even of operands of known sizes."""
    if known.dims is None or sized.dims is None or len(known.dims) != len(sized.dims):
        return known
    return Known(
        known.dtype, tuple(None if size is None else dim for dim, size in zip(known.dims, sized.dims, strict=True))
    )


def _numbered(operand: KnownOperand, number: int) -> KnownOperand:
    sizes = tuple(dim if isinstance(dim, int) else 1 for dim in operand.dims or ())
    return replace(operand, dims=sizes, number=np.full(sizes, number, np.int32))


def _common(left: Known, right: Known) -> Known:
    if left.dims is None or right.dims is None or len(left.dims) != len(right.dims):
        return Known(left.dtype, None)
    return Known(left.dtype, tuple(a if a == b else None for a, b in zip(left.dims, right.dims, strict=True)))


def _asked(node: ir.Node, operands: Sequence[KnownOperand | None], opsets: Mapping[str, int]) -> list[Known]:
    model = _one_node_model(node, operands, opsets)
    if model is None:
        return [NOTHING] * len(node.outputs)
    inferred = _inferred(model.SerializeToString(deterministic=True))
    if inferred is None:
        dims = result_dims(node, [None if operand is None else operand.dims for operand in operands])
        typed = _typed(node, operands, opsets)
        return [Known(of_schema.dtype, known) for of_schema, known in zip(typed, dims, strict=True)]
    names = {dim for operand in operands if operand is not None for dim in operand.dims or () if isinstance(dim, str)}
    return [_spoken(inferred.get(name), names) for name in _names("o", node.outputs)]


def _spoken(known: Known | None, names: set[str]) -> Known:
    """Return `known` without names of dimensions that onnxruntime made up."""
    if known is None or known.dims is None:
        return known or NOTHING
    return Known(known.dtype, tuple(dim if isinstance(dim, int) or dim in names else None for dim in known.dims))


def _one_node_model(
    node: ir.Node, operands: Sequence[KnownOperand | None], opsets: Mapping[str, int]
) -> onnx.ModelProto | None:
    """Return a model of `node` alone, the same for nodes that differ in names only; None where an operand has no known type."""
    proto = ir.serde.serialize_node(node)
    proto.ClearField("name")
    proto.ClearField("doc_string")
    del proto.metadata_props[:], proto.input[:], proto.output[:]
    proto.input.extend(_names("i", node.inputs))
    proto.output.extend(_names("o", node.outputs))
    inputs, constants = [], []
    for name, operand in zip(proto.input, operands, strict=True):
        if not name or operand is None:
            continue
        if operand.dtype is None:
            return None
        if operand.number is None:
            type_ = helper.make_tensor_type_proto(operand.dtype.value, operand.dims)
            inputs.append(helper.make_value_info(name, type_))
        else:
            constants.append(numpy_helper.from_array(operand.number, name))
    outputs = [onnx.ValueInfoProto(name=name) for name in proto.output if name]
    graph = helper.make_graph([proto], "node", inputs, outputs, constants)
    versions = {name: _version(opsets, name) for name in ("", node.domain)}
    imports = [helper.make_opsetid(*pair) for pair in sorted(versions.items())]
    return helper.make_model(graph, opset_imports=imports, ir_version=10)


def _names(letter: str, values: Sequence[ir.Value | None]) -> list[str]:
    return ["" if value is None or not value.name else f"{letter}{index}" for index, value in enumerate(values)]


@lru_cache(maxsize=1024)
def _inferred(model: bytes) -> Mapping[str, Known] | None:
    """Return the types and shapes that onnxruntime infers for the outputs of `model`, of one node, by name; None where it refuses it."""
    try:
        outputs = inferred_results(model)
        without_rank = _without_rank([output.name for output in outputs if output.shape == ()], model)
    except ModelError:
        return None
    return {
        output.name: Known(_dtype(output.type), None if output.name in without_rank else output.shape)
        for output in outputs
    }


def _without_rank(names: Collection[str], model: bytes) -> set[str]:
    """Return which of the results `names`, of which onnxruntime gives no dimension, may have any: of a scalar the shape has no elements."""
    if not names:
        return set()
    measured = onnx.ModelProto.FromString(model)
    for name in names:
        measured.graph.node.append(helper.make_node("Shape", [name], [f"shape of {name}"]))
        measured.graph.output.append(onnx.ValueInfoProto(name=f"shape of {name}"))
    lengths = {result.name: result.shape for result in inferred_results(measured.SerializeToString())}
    return {name for name in names if lengths[f"shape of {name}"] != (0,)}


def _dtype(name: str) -> ir.DataType | None:
    """Return the element type that onnxruntime calls "tensor(float)" and the like; None for what is no tensor."""
    inner = name.removeprefix("tensor(").removesuffix(")").upper()
    return ir.DataType[inner] if name.startswith("tensor(") and inner in ir.DataType.__members__ else None


def _typed(node: ir.Node, operands: Sequence[KnownOperand | None], opsets: Mapping[str, int]) -> list[Known]:
    """Return the element types that the schema ties to those of the operands."""
    version = _version(opsets, node.domain)
    schemas = [schema for schema in contrib_schemas(node.op_type, node.domain) if schema.since_version <= version]
    if not schemas:
        return [NOTHING] * len(node.outputs)
    schema = max(schemas, key=lambda candidate: candidate.since_version)
    bound: dict[str, ir.DataType] = {}
    for index, operand in enumerate(operands):
        if operand is not None and operand.dtype is not None and schema.inputs:
            bound.setdefault(schema.inputs[min(index, len(schema.inputs) - 1)].typeStr, operand.dtype)
    for constraint in schema.type_constraints:
        allowed = list(constraint.allowed_type_strs)
        only = _dtype(allowed[0]) if len(allowed) == 1 else None
        if only is not None:
            bound.setdefault(constraint.type_param_str, only)
    formals = [schema.outputs[min(index, len(schema.outputs) - 1)].typeStr for index in range(len(node.outputs))]
    return [Known(bound.get(formal) or _dtype(formal), None) for formal in formals]
