"""The collector frees what a block of code threw away, and of a graph, shape inference holds one copy for a while."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import onnx
import onnx_ir as ir
import pytest

from onnxtile.model.known import Known
from onnxtile.model.load import load
from onnxtile.shapes import infer
from onnxtile.shapes.resolve import resolve
from onnxtile.system.interpreter import collector_paused, cycles_freed


class Held:
    def __init__(self) -> None:
        self.itself = self


def test_objects_that_hold_each_other_are_freed_at_the_end_of_the_block() -> None:
    with collector_paused():
        before = weakref.ref(Held())
        with cycles_freed():
            inside, kept = weakref.ref(Held()), Held()
        assert inside() is None
        assert before() is not None  # made before the block, it is not looked at
        assert kept.itself is kept
    assert gc.get_freeze_count() == 0


def test_objects_that_the_caller_froze_stay_frozen() -> None:
    gc.freeze()
    try:
        with cycles_freed():
            pass
        assert gc.get_freeze_count() > 0
    finally:
        gc.unfreeze()


BRANCHES = """c = Greater(m, m) y = If (c) <
    then_branch = g1 () => (float[2, 3] a) { a = Neg(h) }, else_branch = g2 () => (float[2, 3] b) { b = Abs(h) }>"""


@pytest.mark.parametrize(("last", "graphs"), [("y = Neg(h)", 0), (BRANCHES, 3)])
def test_only_a_graph_with_bodies_is_copied_while_onnx_infers_and_the_copy_is_freed(
    last: str, graphs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = load(
        onnx.parser.parse_model(f"""<ir_version: 8, opset_import: ["" : 17]>
            g (float[2, 3] x, float m) => (float[2, 3] y) {{ h = Relu(x) {last} }}""")
    )
    inferred, construct, copies = infer._infer_onnx, ir.Graph.__init__, list[int]()
    alive = weakref.WeakSet[ir.Graph]()

    def constructed(graph: ir.Graph, *arguments: Any, **named: Any) -> None:
        construct(graph, *arguments, **named)
        alive.add(graph)

    def noted(content: bytes, names: list[list[str]]) -> list[Known]:
        copies.append(len(alive))
        return inferred(content, names)

    monkeypatch.setattr(infer, "_infer_onnx", noted)
    monkeypatch.setattr(ir.Graph, "__init__", constructed)
    shapes = resolve(model)
    assert copies == [graphs] and not alive
    assert all(shapes.sizes(value) == (2, 3) for node in model.graph for value in node.outputs if value.name != "c")
