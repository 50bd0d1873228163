"""Copies between two memories with tensors that are placed, pinned or kept, and with states."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import onnx
import pytest

import onnxtile
from onnxtile.arena.state_run import StateVerdict
from onnxtile.declare.plan_document import document_of
from onnxtile.model import keys
from onnxtile.system.errors import Infeasible, UsageError
from onnxtile.verbs.flows.results import PlannedModel
from tests.planning.test_movement_plan import SKIP, graph, moved, movement_of, ways

# The cache is written in one row of 16, and read as a whole.
CACHE = """
<ir_version: 10, opset_import: ["" : 24]>
cache (float[1,16,16] past, float[1,1,16] new, int64[1] at) => (float[1,16,16] present, float[1,16,16] y) {
  present = TensorScatter<axis = 1>(past, new, at)
  a = Relu(present)
  b = Exp(a)
  y = Add(b, present)
}
"""
# The cache grows along an axis behind another that is longer than 1.
GROWING = """
<ir_version: 10, opset_import: ["" : 20]>
growing (float[2,7,16] past_k, float[2,1,16] new) => (float[2,8,16] present_k, float[2,8,16] y) {
  present_k = Concat<axis = 1>(past_k, new)
  y = Exp(present_k)
}
"""


def at(planned: PlannedModel, name: str) -> tuple[str, int]:
    found = next(row for row in planned.plan.buffers if row.name == name)
    return found.arena, found.offset


def equal(planned: PlannedModel) -> bool:
    return planned.verdict is not None and planned.verdict.equal


def test_a_tensor_placed_in_the_slow_memory_is_copied_although_there_is_room() -> None:
    planned = moved(SKIP, 4096, places={"a": "dram"}, pins={"a": 4096})
    assert ways(planned)[1:3] == [("a", "sram", "dram"), ("a", "dram", "sram")]
    found = movement_of(planned)
    assert (found.bytes, found.forced, found.lower_bound, found.parts_bound) == (1024, 512, 1024, 1024)
    assert at(planned, "a@dram") == ("dram", 4096)
    assert planned.plan.places == {"a@dram": "dram"}
    assert equal(planned)


def test_a_tensor_that_is_read_at_once_has_bytes_in_its_place() -> None:
    planned = moved(SKIP, 1280, places={"u": "dram"})
    assert [way for way in ways(planned) if way[0] == "u"] == [("u", "sram", "dram")]
    assert movement_of(planned).bytes == movement_of(planned).lower_bound == 1024
    assert equal(planned)


def test_a_tensor_placed_in_the_fast_memory_never_leaves() -> None:
    """While `a` waits, two kernels need 1,024 bytes beside its 256."""
    planned = moved(SKIP, 1280, places={"a": "sram"}, pins={"a": 512})
    assert "a" not in {copy.tensor for copy in movement_of(planned).copies}
    assert at(planned, "a") == ("sram", 512)
    assert equal(planned)
    with pytest.raises(Infeasible, match=r"needs 1,280 bytes .* more than the 1,024 bytes of the fast memory"):
        moved(SKIP, 1024, places={"a": "sram"})


@pytest.mark.parametrize(
    ("options", "copied"),
    [
        ({"places": {"y": "sram"}}, ["x"]),
        ({"io": "inside", "places": {"x": "sram"}}, ["y"]),
        ({"io": "inside", "places": {"x": "sram", "y": "sram"}}, []),
        ({"io": "inside", "places": {"x": "dram"}, "pins": {"x": 64}}, ["x", "y"]),
        ({"keep": ("y",)}, ["x", "y"]),
    ],
)
def test_inputs_and_outputs_with_a_place(options: dict[str, Any], copied: list[str]) -> None:
    planned = moved(SKIP, 1664, **options)
    assert [copy.tensor for copy in movement_of(planned).copies] == copied
    assert movement_of(planned).any_order_bound == 256 * len(copied)
    assert equal(planned)


def test_an_input_that_stays_leaves_less_room() -> None:
    planned = moved(SKIP, 1280, io="inside", places={"x": "sram"})
    assert [copy.tensor for copy in movement_of(planned).copies] == ["a", "a", "y"]
    assert movement_of(planned).bytes == movement_of(planned).lower_bound == 768
    assert moved(SKIP, 1280, io="overwrite", places={"x": "sram"}).plan.movement != planned.plan.movement


def test_a_kept_tensor_has_bytes_to_the_end() -> None:
    slow = moved(SKIP, 1280, keep=("u",))
    assert slow.plan.keeps == ("u@dram",)
    fast = moved(SKIP, 1664, keep=("u",), places={"u": "sram"})
    assert fast.plan.keeps == ("u",)
    for planned, name in ((slow, "u@dram"), (fast, "u")):
        row = next(row for row in planned.plan.buffers if row.name == name)
        assert (row.first, row.last) == (0, max(planned.plan.steps))
        assert equal(planned)


def test_the_metadata_say_the_same_and_are_checked(tmp_path: Path) -> None:
    model = graph(SKIP)
    model.graph.value_info.add(name="a").type.tensor_type.elem_type = onnx.TensorProto.FLOAT
    onnx.helper.set_model_props(model, {})
    for key, text in ((keys.PLACE_IN, "dram"), (keys.PIN, "4096")):
        model.graph.value_info[0].metadata_props.add(key=key, value=text)
    onnx.save(model, tmp_path / "marked.onnx")
    memories = {"sram": 1280, "dram": 1 << 20}
    planned = onnxtile.plan(tmp_path / "marked.onnx", movement="activations", capacity=memories)
    assert at(planned, "a@dram") == ("dram", 4096)
    document = json.loads(json.dumps(document_of(planned.plan.to_dict())))
    (tmp_path / "plan.json").write_text(json.dumps(document))
    assert onnxtile.check_plan(tmp_path / "marked.onnx", tmp_path / "plan.json").failures == ()
    planned.save(tmp_path / "moved.onnx")
    assert onnxtile.check_plan(tmp_path / "moved.onnx", tmp_path / "moved.onnx").failures == ()
    del document["pins"], document["places"]
    next(row for row in document["buffers"] if row["name"] == "a@dram")["offset"] = 8192
    (tmp_path / "plan.json").write_text(json.dumps(document))
    failures = onnxtile.check_plan(tmp_path / "marked.onnx", tmp_path / "plan.json").failures
    assert any("'a@dram' is at 8192, not at its pin 4096" in failure.reason for failure in failures)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"places": {"x": "sram"}}, "'x' has no address in an arena: a graph input"),
        ({"places": {"q": "sram"}}, "no tensor 'q'|unknown tensor|invalid"),
        ({"pins": {"a": 64}}, "one of several memories"),
        ({"places": {"a": "flash"}}, "has no capacity"),
        ({"workspaces": {"CumSum": "64"}, "places": {"u (workspace)": "dram"}}, "cannot be in the slow memory"),
    ],
)
def test_places_that_no_plan_can_have(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        moved(SKIP, 4096, **options)


def test_a_cache_is_in_the_slow_memory_at_one_address(tmp_path: Path) -> None:
    onnx.save(graph(CACHE), tmp_path / "cache.onnx")
    planned = onnxtile.plan(
        tmp_path / "cache.onnx",
        movement="activations",
        capacity={"sram": 4096, "dram": 1 << 16},
        state={"past": "present"},
        runs=3,
    )
    (state,) = planned.plan.states
    assert (state.arena, state.size, state.copied) == ("dram", 1024, 0)
    assert at(planned, "past") == at(planned, "present")
    assert ("past", "dram", "sram") in ways(planned)
    assert ("present", "sram", "dram") in ways(planned)
    assert isinstance(planned.verdict, StateVerdict)
    assert planned.verdict.equal
    assert planned.verdict.runs == 3
    (tmp_path / "plan.json").write_text(json.dumps(document_of(planned.plan.to_dict())))
    assert onnxtile.check_plan(tmp_path / "cache.onnx", tmp_path / "plan.json").failures == ()


def test_a_growing_cache_is_copied_out_as_a_whole() -> None:
    planned = moved(GROWING, 4096, state="found")
    (state,) = planned.plan.states
    assert (state.input, state.arena, state.axis, state.copied) == ("past_k", "dram", 1, 0)
    assert at(planned, "past_k") == at(planned, "present_k")
    assert equal(planned)


EQUAL_NAMES = """
<ir_version: 10, opset_import: ["" : 20, "local" : 1]>
equal (float[4,16] x, bool c) => (float[4,8] y, float[4,16] z)
<float[16,8] w = {WEIGHTS}> {
  z = If (c) <
    then_branch = one () => (float[4,16] a) { a = local.Double(x) },
    else_branch = other () => (float[4,16] b) { b = Neg(x) }
  >
  y = MatMul(x, w)
}
<domain: "local", opset_import: ["" : 20]>
Double (v) => (u) { w = Constant<value_float = 2.0>() u = Mul(v, w) }
"""


def test_a_weight_is_copied_from_its_own_address_where_a_function_has_a_constant_of_its_name() -> None:
    text = EQUAL_NAMES.replace("WEIGHTS", ", ".join("1" for _ in range(128)))
    source = onnx.parser.parse_model(text)
    found = onnxtile.plan(source, movement="weights", capacity={"sram": 2048, "dram": 1 << 16}, io="inside").plan
    assert [one.size for one in found.constants if one.name == "w"] == [512, 4]
    (copy,) = [one for one in found.movement.copies if one.tensor == "w"] if found.movement else []
    assert copy.source_offset == found.constants[[one.name for one in found.constants].index("w")].offset
