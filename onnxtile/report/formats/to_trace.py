"""The plan as a trace that Perfetto (https://ui.perfetto.dev) and chrome://tracing open; a step is shown as a microsecond.

A process is an arena: its buffers are slices, on as few threads as keep those that live at the same time apart (slices of one
thread must nest), and a counter has its live bytes. The first process has the schedule.
(Google, "Trace Event Format": complete events "X", counters "C", metadata "M".)
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

from onnxtile.json_text import compact
from onnxtile.report.bodies import unrolled
from onnxtile.report.format import Format, PlanJson, RenderOptions
from onnxtile.report.layout import ArenaLayout, BufferJson, arenas, runs

_SCHEDULE = 1
_SAID = ("offset", "size", "kind", "alias", "node", "dtype", "shape")

Event = dict[str, Any]


def _write(given: PlanJson, options: RenderOptions) -> bytes:
    plan = unrolled(given)
    facts = {key: plan.get(key) for key in ("digest", "planner", "peak", "lower_bound", "optimal", "optimal_over")}
    content = {
        "traceEvents": list(_events(plan)),
        "displayTimeUnit": "ns",
        "otherData": {"title": options.title, "unit": "1 microsecond is 1 step", **facts},
    }
    return f"{compact(content)}\n".encode()


def _events(plan: PlanJson) -> Iterator[Event]:
    yield _named("process", _SCHEDULE, 0, "schedule")
    yield from _nodes(plan)
    for number, arena in enumerate(arenas(plan), start=_SCHEDULE + 1):
        yield _named("process", number, 0, f"arena {arena.name} ({arena.size:,} bytes)")
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
            yield _named("thread", _SCHEDULE, thread, f"nodes {thread}")
        yield {"ph": "X", "name": node, "cat": "node", "pid": _SCHEDULE, "tid": thread, "ts": step, "dur": 1}


def _slices(arena: ArenaLayout, pid: int) -> Iterator[Event]:
    lanes = 0
    for lane, row in _lanes(arena.rows):
        if lane > lanes:
            lanes = lane
            yield _named("thread", pid, lane, f"buffers {lane}")
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


def _named(what: str, pid: int, tid: int, name: str) -> Event:
    return {"ph": "M", "name": f"{what}_name", "pid": pid, "tid": tid, "args": {"name": name}}


FORMAT = Format("trace", ".trace.json", _write, "a trace for Perfetto: live ranges over the steps")
