"""The plan as a trace that Perfetto (https://ui.perfetto.dev) and chrome://tracing open; a step is shown as a microsecond.

A process is an arena: its buffers are slices, on as few threads as keep those that live at the same time apart (slices of one
thread must nest), and a counter has its live bytes. The first process has the schedule. Copies between two memories are a process with the
steps in which each may run, and where times are known one with kernels and copies side by side, in microseconds.
(Google, "Trace Event Format": complete events "X", counters "C", metadata "M".)
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

from onnxtile.report.format import Format, PlanJson, RenderOptions
from onnxtile.report.layout import ArenaLayout, BufferJson, arenas, runs, steps, unrolled
from onnxtile.system.text import compact

_SCHEDULE = 1
_SAID = ("offset", "size", "kind", "alias", "node", "dtype", "shape")

_COPY = ("tensor", "bytes", "step", "target_free", "source_ready", "before", "source_until")

Event = dict[str, Any]


def _write(given: PlanJson, options: RenderOptions) -> bytes:
    plan = unrolled(given)
    facts = {key: plan.get(key) for key in ("digest", "planner", "peak", "lower_bound", "optimal", "optimal_over")}
    content = {
        "traceEvents": [*_events(plan), *_copy_events(given, plan)],
        "displayTimeUnit": "ns",
        "otherData": {"title": options.title, "unit": "1 microsecond is 1 step", **facts},
    }
    return f"{compact(content)}\n".encode()


def _events(plan: PlanJson) -> Iterator[Event]:
    yield _name_event("process", _SCHEDULE, 0, "schedule")
    yield from _nodes(plan)
    for number, arena in enumerate(arenas(plan), start=_SCHEDULE + 1):
        yield _name_event("process", number, 0, f"arena {arena.name} ({arena.size:,} bytes)")
        yield from _slices(arena, number)
        yield from _counter(arena, number)


def _nodes(plan: PlanJson) -> Iterator[Event]:
    """Yield the nodes, on as many threads as run in one step."""
    busy: Counter[int] = Counter()
    threads = 0
    for step, node in runs(plan):
        busy[step] += 1
        thread = busy[step]
        if thread > threads:
            threads = thread
            yield _name_event("thread", _SCHEDULE, thread, f"nodes {thread}")
        yield {"ph": "X", "name": node, "cat": "node", "pid": _SCHEDULE, "tid": thread, "ts": step, "dur": 1}


def _slices(arena: ArenaLayout, pid: int) -> Iterator[Event]:
    lanes = 0
    for lane, row in _lanes(arena.rows):
        if lane > lanes:
            lanes = lane
            yield _name_event("thread", pid, lane, f"buffers {lane}")
        args = {key: row[key] for key in _SAID if row.get(key) is not None}
        times = {"ts": row["first"], "dur": row["last"] + 1 - row["first"]}
        yield {"ph": "X", "name": row["name"], "cat": row["kind"], "pid": pid, "tid": lane, **times, "args": args}


def _lanes(rows: Iterable[BufferJson]) -> Iterator[tuple[int, BufferJson]]:
    """Yield `rows` by their first step, each with the lowest lane, counted from 1, on which nothing lives any more."""
    free: list[int] = []
    busy: list[tuple[int, int]] = []
    for row in sorted(rows, key=lambda row: (row["first"], -row["last"])):
        while busy and busy[0][0] < row["first"]:
            heapq.heappush(free, heapq.heappop(busy)[1])
        lane = heapq.heappop(free) if free else len(busy) + 1
        heapq.heappush(busy, (row["last"], lane))
        yield lane, row


def _counter(arena: ArenaLayout, pid: int) -> Iterator[Event]:
    """Yield the live bytes wherever they change, and 0 at the end."""
    before, (end, _) = None, arena.live[-1]
    for step, live in arena.live:
        if live != before or step == end:
            yield {"ph": "C", "name": "live bytes", "pid": pid, "tid": 0, "ts": step, "args": {"bytes": live}}
        before = live


def _copy_events(given: PlanJson, plan: PlanJson) -> Iterator[Event]:
    """Yield the copies between memories: the steps in which each may run, and when it runs beside the kernels, where times are known."""
    movement = given.get("movement")
    if not movement or not movement["copies"]:
        return
    time = movement["time"]
    pid, title = _SCHEDULE + 1 + len(arenas(plan)), f"{movement['fast']} and {movement['slow']}"
    yield _name_event("process", pid, 0, f"copies between {title}: when they may run")
    lanes = 0
    for lane, row in _lanes(_windows(given, plan)):
        if lane > lanes:
            lanes = lane
            yield _name_event("thread", pid, lane, f"copies {lane}")
        args = {key: row[key] for key in _COPY}
        if time is not None:
            args["seconds"] = row["bytes"] / time["bandwidth"]
        spell = {"ts": row["first"], "dur": row["last"] + 1 - row["first"]}
        yield {"ph": "X", "name": row["node"], "cat": "copy", "pid": pid, "tid": lane, **spell, "args": args}
    if time is not None and time["starts"] is not None:
        yield from _timed(given, pid + 1, title)


def _windows(given: PlanJson, plan: PlanJson) -> Iterator[BufferJson]:
    """Yield the copies of `given` with the first and the last step of `plan`, its unrolled form, in which each may run."""
    starts = {node: step for step, node in reversed(runs(plan))}
    at = [*(starts[node] for node in given["schedule"]), steps(plan)]
    for copy in given["movement"]["copies"]:
        waits = [copy["before"], None if copy["source_until"] is None else copy["source_until"] + 1]
        first = at[max(copy["target_free"], copy["source_ready"])]
        last = at[min((step for step in waits if step is not None), default=len(at) - 1)] - 1
        yield {**copy, "first": first, "last": last}


def _timed(plan: PlanJson, pid: int, title: str) -> Iterator[Event]:
    """Yield the kernels and the copies when they run, in microseconds of time; those that take none are left out."""
    time, copied = plan["movement"]["time"], {copy["node"]: copy for copy in plan["movement"]["copies"]}
    yield _name_event("process", pid, 0, f"kernels, and copies between {title}: 1 microsecond is 1 microsecond")
    yield _name_event("thread", pid, 1, "kernels")
    yield _name_event("thread", pid, 2, "copies")
    for node, start, end in zip(plan["schedule"], time["starts"], time["ends"], strict=True):
        if start < end:
            args = {"bytes": copied[node]["bytes"]} if node in copied else {}
            spell = {"ts": start * 1e6, "dur": (end - start) * 1e6, "args": args}
            kind = "copy" if node in copied else "node"
            yield {"ph": "X", "name": node, "cat": kind, "pid": pid, "tid": 2 if node in copied else 1, **spell}


def _name_event(what: str, pid: int, tid: int, name: str) -> Event:
    return {"ph": "M", "name": f"{what}_name", "pid": pid, "tid": tid, "args": {"name": name}}


FORMAT = Format("trace", ".trace.json", _write, "a trace for Perfetto: live ranges over the steps")
