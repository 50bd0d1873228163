"""The trace: what Perfetto needs to open it, and what it shows is the plan."""

from __future__ import annotations

import json
from collections import defaultdict
from itertools import pairwise
from typing import Any

from onnxtile.report.formats.to_trace import FORMAT
from tests.report.conftest import Plan, bare, row, stacked


def events(plan: Plan) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(FORMAT.render(plan))["traceEvents"]
    return found


def of(found: list[dict[str, Any]], phase: str) -> list[dict[str, Any]]:
    return [event for event in found if event["ph"] == phase]


def test_every_event_has_what_the_format_asks_for(plan: Plan) -> None:
    found = events(plan)
    assert {event["ph"] for event in found} == {"M", "X", "C"}
    for event in found:
        assert isinstance(event["name"], str)
        assert isinstance(event["pid"], int) and isinstance(event["tid"], int)
    assert all(event["ts"] >= 0 and event["dur"] > 0 for event in of(found, "X"))
    named = {(event["pid"], event["tid"]) for event in of(found, "M") if event["name"] == "thread_name"}
    assert {(event["pid"], event["tid"]) for event in of(found, "X")} == named


def test_the_slices_are_the_buffers_and_the_schedule(plan: Plan) -> None:
    slices = of(events(plan), "X")
    lives = {e["name"]: (e["ts"], e["ts"] + e["dur"] - 1, e["args"]["offset"]) for e in slices if e["pid"] == 2}
    assert lives == {b["name"]: (b["first"], b["last"], b["offset"]) for b in plan["buffers"]}
    assert [e["name"] for e in slices if e["pid"] == 1] == plan["schedule"]


def test_slices_of_a_thread_do_not_overlap_and_threads_are_few() -> None:
    plan = stacked(500)
    threads = defaultdict(list)
    for event in of(events(plan), "X"):
        threads[event["pid"], event["tid"]].append((event["ts"], event["ts"] + event["dur"]))
    for times in threads.values():
        assert all(before[1] <= after[0] for before, after in pairwise(sorted(times)))
    most = max(sum(b["first"] <= s <= b["last"] for b in plan["buffers"]) for s in range(len(plan["schedule"])))
    assert len(threads) == 1 + most


def test_nodes_of_one_step_are_on_threads_of_their_own() -> None:
    plan = bare([row("a", 0, 4, 0, 1)], schedule=["x", "y", "z"], steps=[0, 0, 1])
    nodes = [(e["name"], e["ts"], e["tid"]) for e in of(events(plan), "X") if e["pid"] == 1]
    assert nodes == [("x", 0, 1), ("y", 0, 2), ("z", 1, 1)]
    assert [e["tid"] for e in of(events(plan), "M") if e["pid"] == 1 and e["name"] == "thread_name"] == [1, 2]


def test_the_counter_reaches_the_peak_and_ends_at_nothing(plan: Plan) -> None:
    counter = of(events(plan), "C")
    highest = max(counter, key=lambda event: event["args"]["bytes"])
    assert highest["args"]["bytes"] == plan["peak"]
    assert highest["ts"] == plan["peak_step"]
    assert counter[-1]["args"]["bytes"] == 0
    assert [event["ts"] for event in counter] == sorted({event["ts"] for event in counter})


def test_each_arena_is_a_process_with_a_counter(odd: Plan) -> None:
    found = events(odd)
    names = {e["pid"]: e["args"]["name"] for e in found if e["name"] == "process_name"}
    assert names[2].startswith("arena sram (1,024") and names[3].startswith("arena dram")
    assert {e["pid"] for e in of(found, "C")} == {2, 3}
