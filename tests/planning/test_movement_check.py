"""The check of copies between memories: each change that makes a plan wrong is a failure."""

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
from onnxtile.arena.run import ArenaVerdict, arena_run
from onnxtile.declare.plan_document import document_of
from onnxtile.model.constants import Constants
from onnxtile.model.load import load
from onnxtile.shapes.resolve import resolve
from tests.planning.test_movement_plan import BODY, PARTS, RING, SKIP, graph, layers, moved

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
