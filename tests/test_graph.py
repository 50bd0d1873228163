"""Orders and convexity, against a plain search on small random graphs."""

from __future__ import annotations

from collections.abc import Collection
from itertools import combinations

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from hypothesis import given
from hypothesis import strategies as st

from onnxtile.model.topology import TopologicalOrder, dependencies, heaviest_antichain, node_id, node_ids
from tests.draws import draws


def graph_of(text: str) -> ir.Graph:
    return ir.from_proto(onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["": 17]> {text}')).graph


def nodes(graph: ir.Graph, *outputs: str) -> list[ir.Node]:
    by_output = {value.name: node for node in graph for value in node.outputs}
    return [by_output[name] for name in outputs]


DIAMOND = graph_of("g (float[2] x) => (float[2] y) { a = Neg(x)  b = Abs(a)  c = Exp(a)  d = Relu(x)  y = Add(b, c) }")


@pytest.mark.parametrize(
    ("members", "after"),
    [
        (("a",), ()),
        (("a", "b"), ()),
        (("a", "c"), ("b",)),
        (("b", "c"), ()),
        (("a", "b", "c"), ()),
        (("a", "b", "c", "y"), ()),
        (("b", "c", "y"), ()),
        (("d",), ()),
        (("a", "d"), ("b", "c")),
        (("a", "y"), None),
        (("a", "b", "y"), None),
        (("a", "b", "d", "y"), None),
    ],
)
def test_between(members: tuple[str, ...], after: tuple[str, ...] | None) -> None:
    found = TopologicalOrder(DIAMOND).between(nodes(DIAMOND, *members))
    assert found == (None if after is None else set(nodes(DIAMOND, *after)))


BODY = """g (float[2] x, bool c) => (float[2] y) {
    a = Neg(x)
    i = If (c) <then_branch = t () => (float[2] t) { t = Abs(a) },
                else_branch = e () => (float[2] e) { k = If (c) <
                    then_branch = p () => (float[2] p) { p = Exp(x) },
                    else_branch = q () => (float[2] q) { q = Identity(a) }>  e = Neg(k) }>
    y = Add(a, i) }"""


def test_what_bodies_capture_is_read_by_their_node() -> None:
    graph = graph_of(BODY)
    (node,) = nodes(graph, "i")
    assert {value.name for value in dependencies(node)} == {"c", "a", "x"}


def test_a_body_may_give_what_it_captures() -> None:
    graph = graph_of(
        """g (float[2] x, bool c) => (float[2] y) { a = Neg(x)
        y = If (c) <then_branch = t () => (float[2] t) { t = Abs(x) }, else_branch = e () => (float[2] e) { e = Neg(x) }> }"""
    )
    node = nodes(graph, "y")[0]
    body = node.attributes["else_branch"].as_graph()
    body.outputs[0] = nodes(graph, "a")[0].outputs[0]
    assert "a" in {value.name for value in dependencies(node)}


def test_a_path_by_way_of_a_body_counts() -> None:
    graph = graph_of(BODY)
    assert TopologicalOrder(graph).between(nodes(graph, "a", "y")) is None
    assert TopologicalOrder(graph).between(nodes(graph, "a", "i", "y")) == set()


def test_contract_keeps_an_order() -> None:
    graph = graph_of(
        "g (float[2] x) => (float[2] y) { a = Neg(x)  b = Abs(a)  c = Exp(a)  d = Relu(b)  y = Add(c, d) }"
    )
    order = TopologicalOrder(graph)
    members = nodes(graph, "a", "c")
    after = order.between(members)
    assert after == set(nodes(graph, "b"))
    call = ir.Node("", "Call", [graph.inputs[0]], num_outputs=2)
    _contract(graph, order, members, call, after)
    assert [node.op_type for node in graph] == ["Call", "Abs", "Relu", "Add"]
    assert order.position(call) < order.position(nodes(graph, "b")[0]) < order.position(nodes(graph, "d")[0])


def _contract(
    graph: ir.Graph, order: TopologicalOrder, members: list[ir.Node], call: ir.Node, after: set[ir.Node]
) -> None:
    """Contract `members`, and let what reads them read the outputs of `call` instead."""
    order.contract(members, call, after)
    made = [value for node in members for value in node.outputs if any(u not in members for u in value.consumers())]
    for old, new in zip(made, call.outputs, strict=False):
        old.replace_all_uses_with(new, replace_graph_outputs=True)
    graph.remove(members, safe=True)


def test_nodes_are_named_so_that_they_can_be_told_apart() -> None:
    graph = graph_of("g (float[2] x) => (float[2] y) { [n] a = Neg(x)  [n] b = Abs(a)  c = Exp(b)  [m] y = Relu(c) }")
    assert list(node_ids(graph).values()) == ["a", "b", "c", "m"]
    assert [node_id(node) for node in graph] == ["n", "n", "c", "m"]


# Random graphs: node i reads of the nodes before it those that its numbers choose, or the input.


@st.composite
def _graphs(draw: st.DrawFn) -> tuple[ir.Graph, list[list[int]]]:
    count = draw(st.integers(2, 10))
    x = ir.Value(name="x")
    made: list[ir.Node] = []
    for i in range(count):
        read = sorted({draw(st.integers(-1, i - 1)) for _ in range(2)})
        values = [x if j < 0 else made[j].outputs[0] for j in read]
        made.append(ir.Node("", "Sum", values, num_outputs=1, name=f"n{i}"))
    graph = ir.Graph([x], [made[-1].outputs[0]], nodes=made, opset_imports={"": 17})
    sets = draw(
        st.lists(st.lists(st.integers(0, count - 1), min_size=1, max_size=4, unique=True), min_size=1, max_size=3)
    )
    return graph, sets


def _reached(starts: Collection[ir.Node]) -> set[ir.Node]:
    """Return what depends on `starts`, by a plain search."""
    found: set[ir.Node] = set()
    todo = list(starts)
    while todo:
        for value in todo.pop().outputs:
            new = set(value.consumers()) - found
            found |= new
            todo += new
    return found


def _is_convex(members: set[ir.Node]) -> bool:
    outside = _reached(members) - members
    return not any(reader in members for node in outside for value in node.outputs for reader in value.consumers())


def _require_order(graph: ir.Graph, order: TopologicalOrder) -> None:
    seen: set[ir.Node] = set()
    positions = []
    for node in graph:
        for value in node.inputs:
            producer = value.producer() if value is not None else None
            assert producer is None or producer in seen
        seen.add(node)
        positions.append(order.position(node))
    assert positions == sorted(set(positions))


@draws(150, 600)
@given(case=_graphs())
def test_between_is_convexity_and_contract_keeps_an_order(case: tuple[ir.Graph, list[list[int]]]) -> None:
    graph, sets = case
    everything = list(graph)
    order = TopologicalOrder(graph)
    for indices in sets:
        members = {everything[i] for i in indices if everything[i].graph is graph}
        if not members:
            continue
        after = order.between(members)
        assert (after is not None) == _is_convex(members)
        if after is None:
            continue
        positions = [order.position(node) for node in members]
        window = {node for node in graph if min(positions) <= order.position(node) <= max(positions)}
        assert after == (_reached(members) - members) & window
        outside = [v for n in members for v in n.outputs if v.is_graph_output() or set(v.consumers()) - members]
        read = dict.fromkeys(v for n in members for v in n.inputs if v is not None and v.producer() not in members)
        call = ir.Node("", "Call", list(read), num_outputs=max(1, len(outside)))
        order.contract(members, call, after)
        for old, new in zip(outside, call.outputs, strict=False):
            old.replace_all_uses_with(new, replace_graph_outputs=True)
        graph.remove(list(members), safe=True)
        _require_order(graph, order)


@st.composite
def orders(draw: st.DrawFn) -> tuple[list[int], np.ndarray[tuple[int, int], np.dtype[np.bool_]]]:
    """Weights, and a strict partial order: the paths of a random acyclic graph."""
    size = draw(st.integers(1, 8))
    before = np.zeros((size, size), bool)
    for i, k in combinations(range(size), 2):
        before[i, k] = draw(st.booleans())
    for middle in range(size):
        before |= np.outer(before[:, middle], before[middle])
    return draw(st.lists(st.integers(0, 9), min_size=size, max_size=size)), before


@given(orders())
def test_no_antichain_is_heavier(case: tuple[list[int], np.ndarray[tuple[int, int], np.dtype[np.bool_]]]) -> None:
    weights, before = case
    places = range(len(weights))
    free = [
        some
        for size in range(len(weights) + 1)
        for some in combinations(places, size)
        if not any(before[i, k] for i, k in combinations(some, 2))
    ]
    found = heaviest_antichain(weights, before)
    assert tuple(found) in free
    assert sum(weights[i] for i in found) == max(sum(weights[i] for i in some) for some in free)


def test_too_large_an_order_has_no_antichain_told() -> None:
    assert heaviest_antichain([1] * 4001, np.zeros((4001, 4001), bool)) == []
    assert heaviest_antichain([], np.zeros((0, 0), bool)) == []
