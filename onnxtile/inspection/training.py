"""The activations that a backward pass would keep."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Container

import onnx_ir as ir

from onnxtile.declare.verb import JsonFields
from onnxtile.inspection.work import write_out_calls
from onnxtile.model import keys
from onnxtile.model.constants import Constants
from onnxtile.model.topology import dependencies, node_ids
from onnxtile.operators import saves
from onnxtile.operators.node_view import operator_name
from onnxtile.operators.table import No, movement_of, operator_of
from onnxtile.shapes.resolve import Shapes, resolve, tensor_bytes
from onnxtile.system.dataclass import dataclass

ATTENTION, SOFTMAX = "ScaledDotProductAttention", "Softmax"
ONE_OPERATOR = frozenset(
    {
        *(ATTENTION, SOFTMAX, "GeLU", "GeLUTanh", "HardSwish", "Mish", "QuickGeLU", "SiLU"),
        *("GroupNorm", "InstanceNorm", "LayerNorm", "RMSNorm"),
    }
)
"""Meta-ops that frameworks have as one operator, with a gradient of its own; they need their inputs but Softmax, which needs its output.
Attention needs both: the scores are computed again (Dao et al., "FlashAttention", arXiv 2205.14135, algorithm 4)."""


def is_one_operator(domain: str, name: str) -> bool:
    """Return whether a function is a meta-op that frameworks have as one operator."""
    return domain == keys.DOMAIN and keys.meta_op(name) in ONE_OPERATOR


def needed(node: ir.Node, varying: Container[ir.Value]) -> list[ir.Value] | None:
    """Return the values that the gradient of `node` is computed from; None where nobody knows.

    `varying` are the values for which a gradient is wanted.
    """
    if is_one_operator(node.domain, node.op_type):
        name = keys.meta_op(node.op_type)
        outputs = list(node.outputs) if name in {ATTENTION, SOFTMAX} else []
        return outputs if name == SOFTMAX else [*outputs, *(value for value in node.inputs if value is not None)]
    row = operator_of(node)
    return None if row is None or isinstance(row.saves, No) else row.saves(node, varying)


_BESIDE = {
    "Dropout": ("mask", 0, False),
    "GlobalMaxPool": ("indices", 8, False),
    "MaxPool": ("indices", 8, False),
    "LayerNorm": ("statistics", 8, True),
    "LayerNormalization": ("statistics", 8, True),
    ATTENTION: ("scores", 4, True),
}
"""The kept values, with their bytes for each element or each row (along the last axis) of the result."""


@dataclass(frozen=True)
class KeptValue(JsonFields):
    """An activation that is kept: its bytes (None where unknown), and the nodes whose gradients need it.

    A kept tensor that is not a value of the graph is named after its node: "pool:indices", "drop:mask". `name` is that of the value,
    `bytes` its size, `needed_by` the nodes.
    """

    name: str
    bytes: int | None
    needed_by: tuple[str, ...]


@dataclass(frozen=True)
class Kept(JsonFields):
    """The activations that a backward pass keeps, each once; `by_operator` says for whom (the first that needs it).

    `unknown` are nodes on the way of a gradient that no rule knows: what they keep is not in the sum. `values` are these activations.
    """

    JSON = "bytes of_unknown_size by_operator values unknown"

    values: tuple[KeptValue, ...]
    by_operator: dict[str, int]
    unknown: tuple[str, ...]

    @property
    def bytes(self) -> int:
        """The bytes of all values of known size."""
        return sum(value.bytes or 0 for value in self.values)

    @property
    def of_unknown_size(self) -> int:
        """How many of the values have a size that only a run can tell."""
        return sum(value.bytes is None for value in self.values)


def kept_for_training(model: ir.Model) -> Kept:
    """Return the activations that a backward pass of `model` keeps when every parameter is trained and no input is.

    A parameter is a floating-point constant of more than one element. A call of a local function keeps what its nodes do, a meta-op
    that frameworks have as one operator what that keeps. A value and its views are kept once. Statistics that a normalisation keeps
    for each channel are not counted.
    """
    inlined = model.clone() if model.functions else model
    if model.functions and not write_out_calls(
        inlined, lambda function: not is_one_operator(function.domain, function.name)
    ):
        model = inlined
    shapes, constants = resolve(model), Constants(model)
    needs: dict[ir.Value, list[ir.Node]] = {}
    unknown: list[ir.Node] = []
    beside: list[tuple[ir.Node, str, int | None]] = []
    varying = _Varying(shapes, constants)
    for node in model.graph:
        if not varying.passes(node):
            continue
        values = needed(node, varying)
        if values is None:
            unknown.append(node)
        for value in map(_stored, values or ()):
            if value not in constants:
                needs.setdefault(value, []).append(node)
        extra = _beside(node, shapes)
        if extra is not None:
            beside.append((node, *extra))
    names = node_ids(model.graph)
    by_operator: Counter[str] = Counter()
    kept = [
        KeptValue(value.name or "", tensor_bytes(value, shapes), tuple(dict.fromkeys(names[node] for node in nodes)))
        for value, nodes in needs.items()
    ]
    kept += [KeptValue(f"{names[node]}:{what}", size, (names[node],)) for node, what, size in beside]
    for nodes, saved in zip((*needs.values(), *([node] for node, _, _ in beside)), kept, strict=True):
        by_operator[operator_name(nodes[0])] += saved.bytes or 0
    return Kept(tuple(kept), dict(by_operator.most_common()), tuple(names[node] for node in unknown))


def _beside(node: ir.Node, shapes: Shapes) -> tuple[str, int | None] | None:
    """Return a tensor that a framework keeps although the graph has no such value, and its bytes (None where unknown).

    As PyTorch does on a CPU: MaxPool keeps where each maximum was, an int64; Dropout the factor of each element, in its own type; a layer
    normalisation the mean and the deviation of each row, attention the logarithm of the sum of its scores, float32.
    """
    op = keys.meta_op(node.op_type) if is_one_operator(node.domain, node.op_type) else node.op_type
    if node.domain not in {"", keys.DOMAIN} or op not in _BESIDE:
        return None
    if op == "Dropout":
        return "mask", tensor_bytes(node.outputs[0], shapes)
    sizes = shapes.sizes(node.outputs[0])
    what, each, by_row = _BESIDE[op]
    return what, None if sizes is None else each * math.prod(sizes[:-1] if by_row else sizes)


def _stored(value: ir.Value) -> ir.Value:
    """Return the value whose bytes `value` is a view of."""
    node = value.producer()
    while node is not None and _is_view(node) and node.inputs[0] is not None:
        value = node.inputs[0]
        node = value.producer()
    return value


def _is_view(node: ir.Node) -> bool:
    """Return whether frameworks make the result of `node` without a copy."""
    return movement_of(node) == "renames" or operator_name(node) == "Transpose"


class _Varying:
    """The values that change when a parameter does, gathered node by node in the order of the graph."""

    def __init__(self, shapes: Shapes, constants: Constants) -> None:
        self._shapes = shapes
        self._constants = constants
        self._computed: set[ir.Value] = set()

    def __contains__(self, value: object) -> bool:
        if not isinstance(value, ir.Value):
            return False
        return value in self._computed or self._is_parameter(value)

    def passes(self, node: ir.Node) -> bool:
        """Tell whether a gradient goes through `node`, and note its outputs."""
        row = operator_of(node)
        rule = None if row is None else row.saves
        if rule is saves.stops or all(value in self._constants for value in node.outputs):
            return False
        sequence = rule is saves.sequence
        outputs = [value for value in node.outputs if value.name and (sequence or self._is_float(value))]
        if not outputs or not any(value in self for value in dependencies(node)):
            return False
        self._computed.update(outputs)
        return True

    def _is_parameter(self, value: ir.Value) -> bool:
        sizes = self._shapes.sizes(value)
        return value in self._constants and self._is_float(value) and (sizes is None or math.prod(sizes) > 1)

    def _is_float(self, value: ir.Value) -> bool:
        dtype = self._shapes.dtype(value)
        return dtype is not None and dtype.is_floating_point()
