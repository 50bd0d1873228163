"""The collector frees what a block of code threw away, and of a graph, shape inference holds one copy for a while."""

from __future__ import annotations

import gc
import weakref

import onnx
import onnx_ir as ir
import pytest

from onnxtile.model.known import Known
from onnxtile.model.load import load
from onnxtile.shapes import infer
from onnxtile.shapes.resolve import resolve
from onnxtile.system.process import collector_paused, cycles_freed


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


def test_one_copy_of_the_graph_lives_while_onnx_infers_and_none_afterwards(monkeypatch: pytest.MonkeyPatch) -> None:
    model = load(
        onnx.parser.parse_model("""<ir_version: 8, opset_import: ["" : 17]>
            g (float[2, 3] x) => (float[2, 3] y) { h = Relu(x) y = Neg(h) }""")
    )
    inferred, copies = infer._infer_onnx, list[int]()

    def new_graphs() -> list[int]:
        return [id(value) for value in gc.get_objects() if type(value) is ir.Graph and id(value) not in before]

    def noted(proto: onnx.ModelProto, names: list[list[str]]) -> list[Known]:
        copies.append(len(new_graphs()))
        return inferred(proto, names)

    monkeypatch.setattr(infer, "_infer_onnx", noted)
    gc.collect()
    alive = [
        value for value in gc.get_objects() if type(value) is ir.Graph
    ]  # held, so that no new graph gets the id of one
    before = frozenset(map(id, alive))
    shapes = resolve(model)
    assert copies == [1] and not new_graphs()
    assert all(shapes.sizes(value) == (2, 3) for node in model.graph for value in node.outputs)
