"""The parts of a buffer, and the parts that each node touches."""

from onnxtile.planning.layout.aliases.byte_parts import ByteParts
from onnxtile.planning.layout.graph_layout import Layout, layouts
from onnxtile.planning.layout.ordering.order_search import OrderSearch
from onnxtile.planning.layout.scope import PlanScope
from onnxtile.planning.model_plan import SHARING
from onnxtile.planning.order import find_order
from tests.planning.conftest import Case


def laid_out(text: str) -> tuple[Layout, Case]:
    case = Case.of(text)
    (layout,) = layouts(OrderSearch(case.facts, PlanScope(case.model.graph), 4), find_order("model"), 1, SHARING)
    return layout, case


def found(text: str) -> tuple[list[tuple[int, int]], dict[str, list[tuple[int, ...]]]]:
    """Return the bytes of each part, and the parts of each node: those it reads of each operand, then those of each result."""
    layout, case = laid_out(text)
    parts = ByteParts(layout.schedule.nodes, layout.sharing.alias_sets, case.facts)
    known = layout.sharing.alias_sets.of
    touched = {
        name: [parts.read(node, v) for v in node.inputs if v in known]
        + [tuple(parts.of(v)) for v in node.outputs if v in known]
        for node, name in zip(layout.schedule.nodes, layout.schedule.ids, strict=True)
    }
    return [(part.start, part.end) for part in parts.parts], touched


def test_a_buffer_whose_tensors_fill_it_is_one_part() -> None:
    parts, touched = found("g (float[4] x) => (float[4] y) { a = Sin(x) y = Neg(a) }")
    assert parts == [(0, 16)]
    assert touched == {"a": [(0,)], "y": [(0,), (0,)]}


def test_operands_of_a_concat_are_parts() -> None:
    parts, touched = found("""
    g (float[1,4] x) => (float[2,4] y) { a = Sin(x) b = Cos(x) c = Concat<axis = 0>(a, b) y = Transpose<perm = [0, 1]>(c) }
    """)
    assert parts == [(0, 16), (16, 32), (0, 32)]
    assert touched == {"a": [(0,)], "b": [(1,)], "c": [(0,), (1,), (0, 1)], "y": [(0, 1), (2,)]}


def test_a_slice_reads_only_its_bytes() -> None:
    parts, touched = found("""
    g (float[4,4] x) => (float[1,4] y, float[4,2] z) <int64[1] f = {1}, int64[1] t = {2}, int64[1] e = {4}, int64[1] n = {1}> {
      a = Sin(x) y = Slice(a, f, t) z = Slice(a, t, e, n)
    }
    """)
    assert touched["y"][0] == (1,)
    assert parts[:3] == [(0, 16), (16, 32), (32, 64)]
    # The columns of z are not contiguous: it is taken to read everything.
    assert touched["z"][0] == (0, 1, 2)
