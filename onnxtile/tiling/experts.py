"""Cuts mixtures of experts (com.microsoft's MoE and QMoE) along the inner axis of the experts: N of the first product, K of the second.

The activation between the products takes each element of that axis by itself. So a node equals a sum of nodes over stretches of it, each
with these rows of the first weights and these columns of the second. All choose the same experts, since all read the same router.
https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md#com.microsoft.MoE and #com.microsoft.QMoE.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import lcm

import numpy as np
import onnx_ir as ir

from onnxtile.model import keys
from onnxtile.model.constants import prune
from onnxtile.model.graph_writer import Names
from onnxtile.model.modules import module_note, module_path
from onnxtile.operators.node_view import MICROSOFT, KnownConstants, NotApplicable, ReasonCode, given_input
from onnxtile.system.dataclass import dataclass
from onnxtile.system.errors import Infeasible
from onnxtile.system.runtime import Array
from onnxtile.tiling.contraction import TilingFacts, required_input
from onnxtile.tiling.limits import Limits, TilingPolicy
from onnxtile.tiling.result import SkippedNode, TiledExperts


@dataclass(frozen=True)
class _ExpertOperands:
    """The slots of the operands of one operator: those cut by `rows`, by `columns`, the bias of the result, and those not understood.

    The first of `rows` has the weights of the first product, the first of `columns` those of the second.
    """

    rows: tuple[int, ...]
    columns: tuple[int, ...]
    bias: int
    unknown: range


_OPERANDS: Mapping[str, _ExpertOperands] = {
    "MoE": _ExpertOperands((2, 3, 6, 7), (4,), 5, range(0)),
    "QMoE": _ExpertOperands((2, 3, 4, 8, 9, 10), (5, 6), 7, range(11, 21)),
}


@dataclass(frozen=True)
class ExpertSite:
    """A node that is cut into stretches of `step` elements of its `inner` axis.

    `gates` are the rows of the first product for an element: 2 where it also makes the gates, one after the other if `interleaved`.
    """

    node: ir.Node
    name: str
    experts: int
    width: int
    inner: int
    step: int
    gates: int
    interleaved: bool

    @property
    def stretches(self) -> Iterator[tuple[int, int]]:
        """The stretches of the inner axis."""
        return ((start, min(start + self.step, self.inner)) for start in range(0, self.inner, self.step))

    @property
    def tiles(self) -> int:
        """The number of stretches."""
        return -(-self.inner // self.step)


def find_experts(
    model: ir.Model, limits: Limits, facts: TilingFacts, names: Names, options: TilingPolicy
) -> list[ExpertSite | SkippedNode]:
    """Return the mixtures of experts of `model`, to be cut or left as they are; the model is not changed.

    Raises Infeasible where no stretch meets the limits, and the options are strict.
    """
    sites: list[ExpertSite | SkippedNode] = []
    for node in model.graph.all_nodes():
        if node.domain != MICROSOFT or node.op_type not in _OPERANDS:
            continue
        name = names.name_of(node)
        try:
            if name in options.skip:
                raise NotApplicable("left out on request", ReasonCode.NOT_REQUESTED)
            sites.append(_site(node, name, limits.of_operator(node.op_type), facts))
        except NotApplicable as reason:
            sites.append(SkippedNode.because(name, reason))
        except Infeasible as error:
            if options.strict:
                raise
            sites.append(SkippedNode(name, f"{error.message} ({error.hint})", ReasonCode.OVER_LIMITS))
    return [site for site in sites if isinstance(site, SkippedNode) or site.tiles > 1]


def _site(node: ir.Node, name: str, limits: Limits, facts: TilingFacts) -> ExpertSite:
    """Return the cuts of `node`. Raises NotApplicable and Infeasible."""
    slots = _OPERANDS[node.op_type]
    if facts.dtype(required_input(node, 0), node.op_type) != ir.DataType.FLOAT:
        raise NotApplicable(f"{node.op_type} is cut for float32 only", ReasonCode.ELEMENT_TYPE)
    if any(given_input(node, slot) is not None for slot in slots.unknown):
        raise NotApplicable("it has zero points, weights of its own for routing, or further scales")
    if node.attributes.get_string("quant_type", "int") != "int" or node.attributes.get_int("weights_prepacked", 0) > 0:
        raise NotApplicable("its weights are not stored as whole numbers, row by row")
    for slot in (*slots.rows, *slots.columns):
        value = given_input(node, slot)
        if value is not None and (value.const_value is None or not value.is_initializer()):
            raise NotApplicable(f"its weights {value.name!r} are not an initializer")
    experts, rows, _ = _three(node, slots.rows[0], facts)
    _, width, columns = _three(node, slots.columns[0], facts)
    held = _weights_in_element(node)
    inner = columns * held
    gates = rows // inner if inner else 0
    fusion = node.attributes.get_int("swiglu_fusion", 0)
    if not inner or rows % inner or gates not in {1, 2} or (gates == 2 and fusion not in {1, 2}):
        raise NotApplicable(f"its products have {rows} and {inner} inner elements")
    return ExpertSite(
        node, name, experts, width, inner, _step(node, name, inner, limits, facts), gates, interleaved=fusion == 1
    )


def _step(node: ir.Node, name: str, inner: int, limits: Limits, facts: TilingFacts) -> int:
    """Return the length of a stretch: within the limits of N and K, in whole bytes and blocks of the second weights."""
    bounds = [bound for bound in (limits.k, limits.n) if bound is not None]
    scales = given_input(node, 6) if node.op_type == "QMoE" else None
    is_blocked = scales is not None and len(facts.known_dims(scales)) == 3
    block = node.attributes.get_int("block_size", 0) if is_blocked else 0
    unit = lcm(_weights_in_element(node), max(block, 1), *limits.multiples[1:])
    most = min(bounds, default=inner)
    if inner <= most:
        return inner
    if most < unit:
        raise Infeasible(
            f"{name!r}: its experts are cut into stretches of {unit} elements at least",
            hint=f"allow {unit} for K and N of --max",
        )
    return most // unit * unit


def _weights_in_element(node: ir.Node) -> int:
    """Return the number of the second weights in a byte or element."""
    if node.op_type != "QMoE":
        return 1
    bits = node.attributes.get_int("expert_weight_bits", 4)
    return max(1, 8 // max(1, node.attributes.get_int("fc2_expert_weight_bits", bits)))


def _three(node: ir.Node, slot: int, facts: TilingFacts) -> tuple[int, int, int]:
    value = required_input(node, slot)
    dims = facts.known_dims(value)
    if len(dims) != 3:
        raise NotApplicable(f"its weights {value.name!r} have {len(dims)} axes, not 3")
    return dims[0], dims[1], dims[2]


def cut_experts(site: ExpertSite, constants: KnownConstants, names: Names) -> TiledExperts:
    """Replace the node of `site` by a sum of nodes over the stretches, one added after the other."""
    node, graph = site.node, site.node.graph
    assert graph is not None
    result, old = node.outputs[0], list(node.inputs)
    nodes: list[ir.Node] = []
    total: ir.Value | None = None
    for index, (start, end) in enumerate(site.stretches):
        inputs = [_part(site, number, start, end, constants, names) for number in range(len(old))]
        tile = _node(site, node.op_type, inputs, f"{site.name}/n{index}", index, names, node.attributes.values())
        nodes.append(tile)
        if total is not None:
            nodes.append(_node(site, "Add", [total, tile.outputs[0]], f"{site.name}/sum{index}", index, names))
        total = nodes[-1].outputs[0]
    ir.convenience.replace_nodes_and_values(graph, node, [node], nodes, [result], [nodes[-1].outputs[0]])
    prune((value for value in old if value is not None), constants)
    return TiledExperts(
        site.name, node.op_type, site.experts, site.width, site.inner, site.step, site.tiles, len(nodes)
    )


def _node(
    site: ExpertSite,
    op: str,
    inputs: Sequence[ir.Value | None],
    name: str,
    index: int,
    names: Names,
    attributes: Iterable[ir.Attr] = (),
) -> ir.Node:
    source = site.node.outputs[0]
    output = ir.Value(name=names.fresh(name), type=source.type, shape=source.shape)
    mark = json.dumps({"source": site.name, "op": site.node.op_type, "n": index}, ensure_ascii=False)
    domain = MICROSOFT if op == site.node.op_type else ""
    fresh = names.fresh(name)
    path = module_path(site.node.name, site.node.metadata_props)
    return ir.Node(
        domain,
        op,
        inputs,
        tuple(attributes),
        outputs=[output],
        name=fresh,
        metadata_props={keys.TILE: mark, **module_note(path, fresh)},
    )


def _part(
    site: ExpertSite, slot: int, start: int, end: int, constants: KnownConstants, names: Names
) -> ir.Value | None:
    """Return the operand at `slot` of the tile from `start` to `end`; the bias of the result goes into the last tile alone."""
    slots, value = _OPERANDS[site.node.op_type], site.node.inputs[slot]
    if value is None or (slot == slots.bias and end < site.inner):
        return None
    if slot in slots.rows:
        at, axis = _rows(site, slot, start, end), 1
    elif slot in slots.columns and value.shape is not None and len(value.shape) == 3:
        per = site.inner // value.shape.numpy()[2]
        at, axis = np.arange(start // per, -(-end // per)), 2
    else:
        return value
    array: Array = np.take(constants.array(value), at, axis)
    name = names.fresh(f"{value.name}/{start}")
    graph = value.graph
    assert graph is not None
    part = ir.Value(name=name, const_value=ir.Tensor(array, name=name), shape=ir.Shape(array.shape), type=value.type)
    graph.register_initializer(part)
    return part


def _rows(site: ExpertSite, slot: int, start: int, end: int) -> Array:
    """Return the rows of the first product of the elements from `start` to `end`, and those of their gates."""
    if site.gates == 1 or slot not in {2, 3, 4}:
        return np.arange(start, end)
    if site.interleaved:
        return np.arange(2 * start, 2 * end)
    return np.concatenate([np.arange(start, end), np.arange(site.inner + start, site.inner + end)])
