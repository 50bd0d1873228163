"""The collector frees what a block of code threw away, and of a graph, shape inference holds one copy for a while."""

from __future__ import annotations

import gc
import weakref
from pathlib import Path
from typing import Any

import onnx
import onnx_ir as ir
import pytest

import onnxtile
from onnxtile.check.audit import check
from onnxtile.check.graph import GraphNode
from onnxtile.model.constants import Constants
from onnxtile.model.known import Known
from onnxtile.model.load import load
from onnxtile.model.save import written
from onnxtile.model.topology import cloned
from onnxtile.planning.model_plan import plan_model
from onnxtile.shapes import infer
from onnxtile.shapes.resolve import resolve
from onnxtile.system.interpreter import collector_paused, cycles_freed
from onnxtile.verbs.flows import check_plan
from tests.bench.large_graphs import MAKERS


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


def test_copies_and_writing_leave_no_empty_stores_of_notes_in_a_model() -> None:
    model = ir.from_proto(MAKERS["transformer"](80))
    noted = model.graph.node(1)
    noted.meta["note"] = 1
    copy = cloned(model)
    written(copy)
    for one in (model, copy):
        holders = [*one.graph, *(value for node in one.graph for value in node.outputs)]
        assert [holder for holder in holders if getattr(holder, "_metadata") is not None] == [one.graph.node(1)]  # noqa: B009
    assert copy.graph.node(1).meta["note"] == 1


def test_the_check_of_a_plan_frees_the_graph_that_it_read() -> None:
    model = load(MAKERS["transformer"](80))
    shapes, constants = resolve(model), Constants(model)
    plan = plan_model(model, shapes, constants)
    gc.collect()
    gc.disable()
    try:
        assert check(model, plan, shapes, constants).sound
        assert not any(isinstance(one, GraphNode) for one in gc.get_objects())
    finally:
        gc.enable()


def test_a_planned_model_is_freed_once_its_plan_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = tmp_path / "m.onnx"
    onnx.save(MAKERS["transformer"](80), model)
    onnxtile.plan(model).save(tmp_path / "planned.onnx")
    read, held = list[weakref.ref[ir.Graph]](), list[bool]()

    def noted(path: Path) -> ir.Model:
        held.extend(one() is not None for one in read)
        made = load(path)
        read.append(weakref.ref(made.graph))
        return made

    monkeypatch.setattr(check_plan, "load", noted)
    gc.collect()
    gc.disable()
    try:
        assert onnxtile.check_plan(model, tmp_path / "planned.onnx").sound
    finally:
        gc.enable()
    assert held == [False]
