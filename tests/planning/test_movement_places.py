"""Copies between two memories with tensors that are placed, pinned or kept, and with states."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import onnx
import pytest

import onnxtile
from onnxtile.arena.run import ArenaVerdict, StateVerdict, arena_run
from onnxtile.declare.layout_rules import FIXED
from onnxtile.declare.plan_document import document_of
from onnxtile.model.constants import Constants
from onnxtile.model.load import load
from onnxtile.shapes.resolve import resolve
from onnxtile.system.errors import Infeasible, UsageError
from onnxtile.verbs.flows.results import PlannedModel
from tests.planning.test_movement_plan import BODY, PARTS, RING, SKIP, graph, layers, moved, movement_of, ways

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
    for key, text in ((FIXED["places"].mark, "dram"), (FIXED["pins"].mark, "4096")):
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


# The check of copies between memories: each change that makes a plan wrong is a failure.


Document = dict[str, Any]


@pytest.fixture(scope="module")
def document() -> Document:
    found: Document = json.loads(json.dumps(document_of(moved(SKIP, 1024, verify=False).plan.to_dict())))
    return found


def audit(document: Document, folder: Path, text: str = SKIP) -> Any:
    onnx.save(graph(text), folder / "skip.onnx")
    (folder / "plan.json").write_text(json.dumps({**document, "digest": None}))
    return onnxtile.check_plan(folder / "skip.onnx", folder / "plan.json")


def test_a_right_plan_of_the_model_without_copies(document: Document, tmp_path: Path) -> None:
    assert audit(document, tmp_path).failures == ()


def test_a_right_plan_with_a_body(tmp_path: Path) -> None:
    body = json.loads(json.dumps(document_of(moved(BODY, 1024, verify=False).plan.to_dict())))
    assert audit(body, tmp_path, BODY).failures == ()


def test_a_right_plan_with_parts_of_an_input(tmp_path: Path) -> None:
    parts = json.loads(json.dumps(document_of(moved(PARTS, 448, verify=False).plan.to_dict())))
    assert audit(parts, tmp_path, PARTS).failures == ()
    kernel = next(copy for copy in parts["movement"]["copies"] if copy["result"] == "s")
    parts["movement"]["copies"].append({**kernel, "node": "p", "result": "p"})
    assert audit(parts, tmp_path, PARTS).failures


def test_a_constant_output_is_copied_from_the_constants(tmp_path: Path) -> None:
    text = """<ir_version: 10, opset_import: ["" : 20]>
      g (float[2,4] x) => (float[2,4] y, float[4] w) <float[4] q = {1, 2, 3, 4}> { w = Neg(q)  y = Add(x, w) }"""
    planned = moved(text, 1024)
    assert planned.verdict is not None and planned.verdict.equal
    document = json.loads(json.dumps(document_of(planned.plan.to_dict())))
    assert audit(document, tmp_path, text).failures == ()
    document["movement"]["forced"] += 16
    assert audit(document, tmp_path, text).failures


@pytest.mark.parametrize("places", [{}, {"w": "sram"}])
def test_constants_that_are_made_from_a_constant_output_are_constants(places: dict[str, str], tmp_path: Path) -> None:
    """The output is a weight like others, or made in the fast memory; what is made from it beforehand is another weight."""
    text = f"""<ir_version: 10, opset_import: ["" : 20]>
      g (float[2,32] x) => (float[2,32] y, float[2,32] z, float[32] w) <float[32] q = {{{", ".join(["0.5"] * 32)}}}> {{
        w = Neg(q)  n = Exp(w)  y = Add(x, w)  z = Mul(x, n) }}"""
    planned = moved(text, 640, "weights", io="inside", places=places)
    assert planned.verdict is not None and planned.verdict.equal
    document = json.loads(json.dumps(document_of(planned.plan.to_dict())))
    assert audit(document, tmp_path, text).failures == ()
    read = [copy["tensor"] for copy in document["movement"]["copies"] if copy["source_memory"] == "constants"]
    assert read == (["n"] if places else ["w", "w", "n"])


def row(document: Document, name: str) -> Document:
    found: Document = next(row for row in document["buffers"] if row["name"] == name)
    return found


def copied(document: Document, result: str) -> Document:
    found: Document = next(one for one in document["movement"]["copies"] if one["result"] == result)
    return found


def in_slow(document: Document) -> None:
    row(document, "v")["arena"] = "dram"


def reads_slow(document: Document) -> None:
    place = (
        document["schedule"].index("y@sram") if "y@sram" in document["schedule"] else document["operators"].index("Add")
    )
    document["operands"][place] = [name.replace("a@sram", "a@dram") for name in document["operands"][place]]


def swapped(document: Document) -> None:
    """The tensor is copied back before it is copied out."""
    out, back = (document["schedule"].index(f"Copy/a@{memory}") for memory in ("dram", "sram"))
    for key in ("schedule", "operators", "operands", "results", "attributes"):
        document[key][out], document[key][back] = document[key][back], document[key][out]


def overwritten(document: Document) -> None:
    """The copy in the slow memory lies where the output is written, whose live range ends with the run."""
    row(document, "a@dram")["offset"] = row(document, "y")["offset"] = 0
    row(document, "a@sram")["offset"] = row(document, "v")["offset"]


OTHERWISE: dict[str, object] = {
    "tensor": "v",
    "source": "a",
    "source_memory": "sram",
    "source_offset": 64,
    "memory": "dram",
    "offset": 1 << 16,
    "bytes": 255,
    "step": 0,
    "before": None,
}

SPEEDS: dict[str, Any] = {"target": {"bandwidth": {"dram": "1MB/s"}, "macs_per_second": "1M"}}


def claims_otherwise(field: str, value: object, document: Document) -> None:
    copied(document, "a@sram")[field] = value


CHANGES: dict[str, Callable[[Document], Any]] = {
    "an operand in the slow memory": in_slow,
    "a kernel reads the slow copy": reads_slow,
    "the order of copies": swapped,
    "bytes that are overwritten": overwritten,
    "bytes": lambda d: d["movement"].update(bytes=d["movement"]["bytes"] - 1),
    "forced": lambda d: d["movement"].update(forced=d["movement"]["forced"] + 1),
    "a bound above the bytes": lambda d: d["movement"].update(lower_bound=d["movement"]["bytes"] + 1),
    "memories": lambda d: d["movement"].update(fast="dram", slow="sram"),
    "a copy that is not listed": lambda d: d["movement"]["copies"].pop(),
    "a copy listed twice": lambda d: d["movement"]["copies"].append(d["movement"]["copies"][0]),
    "no movement": lambda d: d.pop("movement"),
    **{f"{field} of a copy": partial(claims_otherwise, field, value) for field, value in OTHERWISE.items()},
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_wrong_plan_is_refused(document: Document, tmp_path: Path, change: str) -> None:
    wrong = copy.deepcopy(document)
    CHANGES[change](wrong)
    assert wrong != document
    assert audit(wrong, tmp_path).failures


@pytest.fixture(scope="module")
def ring() -> Document:
    """A plan in which weights use the room of the fast memory in turn, with times."""
    planned = onnxtile.plan(layers(), movement="weights", capacity=RING, verify=False, **SPEEDS)
    found: Document = json.loads(json.dumps(document_of(planned.plan.to_dict())))
    return found


def audit_ring(document: Document, folder: Path) -> Any:
    onnx.save(layers(), folder / "layers.onnx")
    (folder / "plan.json").write_text(json.dumps({**document, "digest": None}))
    return onnxtile.check_plan(folder / "layers.onnx", folder / "plan.json").failures


@pytest.mark.parametrize("field", ["target_free", "source_ready", "source_until", "before"])
def test_no_copy_may_run_outside_of_its_window(ring: Document, tmp_path: Path, field: str) -> None:
    """A target that is written too early, a source that is read before it is made or reused too early, and a wait that is too late."""
    assert audit_ring(ring, tmp_path) == ()
    tried = 0
    for number, one in enumerate(ring["movement"]["copies"]):
        others = {0, None} if one[field] is None else {one[field] - 1, one[field] + 1, None}
        lasts = field in {"source_until", "before"}
        for value in (other for other in others - {one[field], -1} if lasts or other is not None):
            wrong = copy.deepcopy(ring)
            wrong["movement"]["copies"][number][field] = value
            assert any(field in str(failure) for failure in audit_ring(wrong, tmp_path)), (one["node"], value)
            tried += 1
    assert tried >= len(ring["movement"]["copies"])


@pytest.mark.parametrize(
    "field", ["copying", "computing", "without_overlap", "with_overlap", "starts", "ends", "bandwidth"]
)
def test_times_that_do_not_follow_are_refused(ring: Document, tmp_path: Path, field: str) -> None:
    time = ring["movement"]["time"]
    given = time[field]
    for value in (
        ([*given[:-1], given[-1] * 1.01], given[1:], None) if isinstance(given, list) else (given * 2, given * 3)
    ):
        wrong = copy.deepcopy(ring)
        wrong["movement"]["time"][field] = value
        assert audit_ring(wrong, tmp_path), value


def test_the_run_notices_a_copy_outside_of_its_window() -> None:
    """Copies run at their earliest and at their latest: a step too early or too late gives other bits."""
    planned = onnxtile.plan(layers(), movement="weights", capacity=RING, **SPEEDS)
    assert planned.verdict is not None and planned.verdict.equal
    assert isinstance(planned.verdict, ArenaVerdict) and planned.verdict.copy_runs == 2
    movement = planned.plan.movement
    assert movement is not None
    (reused, *_) = (c for c in movement.copies if c.target_free > 1)
    load, store = [c for c in movement.copies if c.before is not None][-1], movement.copies[-1]
    changes: list[tuple[Any, dict[str, Any]]] = [
        (reused, {"target_free": reused.target_free - 2}),
        (load, {"before": None}),
        (store, {"source_ready": store.source_ready - 2}),
    ]
    for one, change in changes:
        copies = tuple(replace(c, **change) if c is one else c for c in movement.copies)
        if "target_free" in change:  # those before it do not hold it back
            copies = tuple(replace(c, target_free=0) if c.step < one.step else c for c in copies)
        wrong = replace(planned.plan, movement=replace(movement, copies=copies))
        assert not arena_run(planned.model, wrong, resolve(planned.model, run=True), Constants(planned.model)).equal, (
            change
        )


def test_the_run_notices_bytes_that_a_copy_lost(tmp_path: Path) -> None:
    """A kernel that reads the bytes before they are copied back gives other bits: the copies are carried out in the run."""
    planned = moved(SKIP, 1024, verify=False)
    planned.save(tmp_path / "moved.onnx")
    model = load(tmp_path / "moved.onnx")
    shapes = resolve(model, run=True)
    assert arena_run(model, planned.plan, shapes, Constants(model)).equal
    at = {buffer.name: buffer for buffer in planned.plan.buffers}
    buffers = tuple(
        replace(b, arena="sram", offset=at["v"].offset) if b.name == "a@dram" else b for b in planned.plan.buffers
    )
    wrong = replace(planned.plan, buffers=buffers)
    assert not arena_run(model, wrong, shapes, Constants(model)).equal


def test_times_of_products_that_the_check_does_not_count_are_said_not_to_be_checked(tmp_path: Path) -> None:
    text = SKIP.replace("y = Add(s, a)", 'e = Einsum <equation = "i,i->i"> (s, a)  y = Add(e, a)')
    assert text != SKIP
    planned = moved(text, 1024, verify=False, **SPEEDS)
    document = json.loads(json.dumps(document_of(planned.plan.to_dict())))
    found = audit(document, tmp_path, text)
    assert (found.sound, found.unchecked) == (
        True,
        ("the times of the kernels: the products of Einsum are not counted",),
    )
    for field in ("copying", "without_overlap"):
        wrong = copy.deepcopy(document)
        wrong["movement"]["time"][field] *= 2
        assert audit(wrong, tmp_path, text).failures, field
