"""Nodes that raise the bytes alive run right before their first reader."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import onnxtile
from onnxtile.fitting.editing import ModelEdit
from onnxtile.fitting.rewrites.order import delay_nodes, hasten_nodes
from onnxtile.model.load import load
from onnxtile.shapes.resolve import resolve
from tests.counted import calls
from tests.fitting.networks import model


def test_a_wide_node_runs_behind_the_gate_that_is_read_beside_it() -> None:
    text = """
g (float[1,2,8,8] x) => (float[1,2,8,8] y) {
    [small] a = Conv(x, w0)
    [wide] b = Conv(a, w1)
    [mean] c = GlobalAveragePool(a)
    [gate] d = Conv(c, w1)
    [gated] e = Mul(b, d)
    [narrow] y = Conv(e, w2)
}"""
    made = load(model(text, w0=(2, 2, 1, 1), w1=(16, 2, 1, 1), w2=(2, 16, 1, 1)))
    moved = delay_nodes(ModelEdit(made, resolve(made, run=False)))
    assert [node.name for node in moved] == ["wide"]
    assert [node.name for node in made.graph] == ["small", "mean", "gate", "wide", "gated", "narrow"]


@settings(max_examples=25, deadline=None)
@given(
    widths=st.lists(st.integers(1, 24), min_size=3, max_size=12),
    picks=st.lists(st.tuples(st.integers(0, 99), st.integers(0, 99)), min_size=12, max_size=12),
)
@pytest.mark.parametrize("run", [hasten_nodes, delay_nodes])
def test_any_graph_stays_in_order(run: object, widths: list[int], picks: list[tuple[int, int]]) -> None:
    """Each node reads one or two tensors that were made before it; all unread ones are outputs."""
    made, lines, read = [("x", 2)], list[str](), set[str]()
    weights: dict[str, tuple[int, ...]] = {}
    for place, (width, (first, second)) in enumerate(zip(widths, picks, strict=False)):
        (one, own), (other, there) = made[first % len(made)], made[second % len(made)]
        weights |= {f"w{place}": (width, own, 1, 1), f"v{place}": (width, there, 1, 1)}
        lines += [
            f"a{place} = Conv({one}, w{place})",
            f"b{place} = Conv({other}, v{place})",
            f"c{place} = Add(a{place}, b{place})",
        ]
        made += [(f"a{place}", width), (f"c{place}", width)]
        read |= {one, other, f"a{place}", f"b{place}"}
    outputs = ", ".join(f"float[n,c{name},h,w] {name}" for name, _ in made if name not in read and name != "x")
    proto = model(f"g (float[1,2,4,4] x) => ({outputs}) {{ {' '.join(lines)} }}", **weights)
    changed = load(proto)
    assert callable(run)
    run(ModelEdit(changed, resolve(changed, run=False)))
    seen = set(changed.graph.inputs) | set(changed.graph.initializers.values())
    for node in changed.graph:
        assert all(value in seen for value in node.inputs)
        seen.update(node.outputs)


def test_the_order_alone_is_equal_bit_for_bit() -> None:
    text = """
g (float[1,2,16,16] x) => (float[1,2,16,16] y) {
    [first] a = Conv(x, w0)
    [wide] b = Conv(a, w1)
    [down] c = MaxPool<kernel_shape=[16,1]>(a)
    [deep] d = Conv(c, w1)
    [gated] e = Mul(b, d)
    [narrow] y = Conv(e, w2)
}"""
    proto = model(text, w0=(2, 2, 1, 1), w1=(16, 2, 1, 1), w2=(2, 16, 1, 1))
    fitted = onnxtile.fit(proto, smallest=True, exact=True, max_extra_macs="0%")
    assert fitted.steps[0].kind == "order"
    assert fitted.after.arena < fitted.before.arena


def test_twice_the_readers_of_a_value_take_twice_the_calls() -> None:
    def work(size: int) -> int:
        names = [f"a{place}" for place in range(size)]
        lines = " ".join(f"{name} = Tanh(x)" for name in names)
        made = load(model(f"g (float[8] x) => (float[8] y) {{ {lines} y = Sum({', '.join(names)}) }}"))
        edit = ModelEdit(made, resolve(made, run=False))
        return calls(lambda: delay_nodes(edit))

    small, middle, large = map(work, (50, 100, 200))
    assert large - middle < 1.4 * 2 * (middle - small)
