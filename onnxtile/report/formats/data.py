"""The plan as data for other programs: JSON, CSV, TensorFlow Lite Micro, traces, and what needs the model, too."""

from __future__ import annotations

import heapq
import struct
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from onnxtile.declare.plan_document import document_of
from onnxtile.report.format import Format, PlanExport, PlanJson, RenderOptions
from onnxtile.report.layout import ArenaLayout, BufferJson, arenas, flat, owners, pieces, runs, steps, unrolled
from onnxtile.system.errors import UsageError
from onnxtile.system.text import as_csv, as_json, compact

# The plan as JSON; its schema is docs/plan.schema.json.
#
# It has what the check of plans derives from the model, and nothing else. How the plan was found, and what a search or a run proved, are in
# the report of the command and in certificates.
#
# Also the offsets as node data for Model Explorer (https://github.com/google-ai-edge/model-explorer, "Custom node data"): the data of one
# graph, which Model Explorer shows on the graph that is open. It is a value for each node, by the node's name and by the name of each
# tensor that it makes (its adapters know nodes by one or the other), and colours from the lowest to the highest.


_GRADIENT = ((0, "#edf8fb", "black"), (0.5, "#8c96c6", "black"), (1, "#6e016b", "white"))
"""Stops from the lowest to the highest offset, each with the colours of the ground and of the text."""


def _plan_data(plan: PlanJson, _options: RenderOptions) -> bytes:
    return as_json(document_of(plan)).encode()


def _node_data(plan: PlanJson, _options: RenderOptions) -> bytes:
    results: dict[str, dict[str, int]] = {}
    for row in (*plan["buffers"], *_inside(plan.get("bodies") or ())):
        for key in filter(None, (row.get("node"), row["name"])):
            results.setdefault(key, {"value": row["offset"]})
    gradient = [{"stop": stop, "bgColor": color, "textColor": text} for stop, color, text in _GRADIENT]
    return as_json({"results": results, "gradient": gradient}).encode()


def _inside(bodies: Iterable[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
    """Yield the rows of bodies, at any depth, whose nodes and tensors Model Explorer knows by their own names."""
    for body in bodies:
        yield from body["buffers"]
        yield from _inside(body["bodies"])


JSON = Format("json", ".json", _plan_data, "the whole plan (docs/plan.schema.json)")
MODEL_EXPLORER = Format("model-explorer", ".me.json", _node_data, "node data for Model Explorer")


# The plan as CSV with MiniMalloc's columns: id, lower, upper (half-open life in steps), size and offset (bytes); where buffers lie in
# several arenas, which MiniMalloc does not know, also the arena. Time is unrolled: what the bodies of a node hold stands in the place of
# their workspace, each body with steps of its own, so that the file is a whole problem.
#
# The rows are rectangles: each part of a buffer with parts is a row of its own. The columns part_of and part_start then name the buffer and
# its byte at which the part begins.
#
# (https://github.com/google/minimalloc, "Input format".)


def _csv(given: PlanJson, _options: RenderOptions) -> bytes:
    plan = flat(given)
    several = len({buffer["arena"] for buffer in plan["buffers"]}) > 1
    owned = owners(plan)
    names = {buffer["name"] for buffer in owned}
    in_parts = any(buffer.get("parts") for buffer in owned)
    columns = ["id", "lower", "upper", "size", "offset", *["arena"] * several, *["part_of", "part_start"] * in_parts]
    rows: list[list[object]] = [[*columns]]
    for buffer in owned:
        for number, piece in enumerate(pieces(buffer)):
            life, address = (piece["first"], piece["last"] + 1), [buffer["arena"]] * several
            name, whole = buffer["name"], ["", ""]
            if piece is not buffer:
                name, whole = _new_id(f"{name}#{number}", names), [name, piece["offset"] - buffer["offset"]]
            rows.append([name, *life, piece["size"], piece["offset"], *address, *whole * in_parts])
    return as_csv(rows)


def _new_id(name: str, taken: set[str]) -> str:
    """Return `name`, with a mark after it for each time that it is `taken`, and add it to these."""
    while name in taken:
        name += "#"
    taken.add(name)
    return name


CSV = Format("csv", ".csv", _csv, "a problem and its solution in the columns of MiniMalloc")


# TensorFlow Lite Micro's offline memory plan, made of a plan: the bytes of its buffer, or JSON with the tensors' names.
#
# A list of 32-bit integers: version, number of subgraphs, number of tensors n, then the offset of each tensor in the head of the arena, or
# -1 where TensorFlow Lite Micro is to find one itself. It becomes the buffer of the model's metadata "OfflineMemoryAllocation".
# (https://github.com/tensorflow/tflite-micro, tensorflow/lite/micro/docs/memory_management.md, "Offline planned tensor allocations".)


TFLM_NAME = "OfflineMemoryAllocation"
"""The name of the metadata."""

_VERSION = 1
_SUBGRAPHS = 1
_AT_RUNTIME = -1
_LARGEST = 2**31 - 1


def tensors(plan: PlanJson) -> list[str]:
    """Return the names of the tensors in the order of their offsets: those without an address (inputs, constants), then buffers."""
    return [name for name, _ in _offsets(plan)]


def words(plan: PlanJson) -> list[int]:
    """Return the list of integers. Raises UsageError for several arenas, and for offsets above 2 GiB."""
    used = sorted({row["arena"] for row in plan["buffers"]})
    if len(used) > 1:
        raise UsageError(
            f"TensorFlow Lite Micro has one arena, and the plan has {len(used)}: {', '.join(used)}",
            hint="give one --capacity, or none",
        )
    offsets = [offset for _, offset in _offsets(plan)]
    if max(offsets, default=0) > _LARGEST:
        raise UsageError("TensorFlow Lite Micro takes offsets below 2 GiB, and the plan has larger ones")
    return [_VERSION, _SUBGRAPHS, len(offsets), *offsets]


def _offsets(plan: PlanJson) -> Iterator[tuple[str, int]]:
    for kind in ("outside", "constants", "unplanned"):
        yield from ((row["name"], _AT_RUNTIME) for row in plan.get(kind, ()))
    # TensorFlow Lite Micro has no tensors for workspaces: its kernels request their bytes while they are prepared.
    yield from ((row["name"], row["offset"]) for row in plan["buffers"] if row["kind"] != "workspace")


def _tflm_bytes(plan: PlanJson, _options: RenderOptions) -> bytes:
    # Little-endian, as in any flatbuffer.
    values = words(plan)
    return struct.pack(f"<{len(values)}i", *values)


def _tflm_json(plan: PlanJson, _options: RenderOptions) -> bytes:
    content = {
        "name": TFLM_NAME,
        "arena_size": sum(arena["size"] for arena in plan["arenas"]),
        "buffer": words(plan),
        "tensors": tensors(plan),
    }
    return as_json(content).encode()


TFLM = Format("tflm", ".tflm", _tflm_bytes, "the bytes of TensorFlow Lite Micro's offline memory allocation")
TFLM_JSON = Format(
    "tflm-json", ".tflm.json", _tflm_json, "TensorFlow Lite Micro's offline memory allocation as a list of numbers"
)


# The plan as a trace that Perfetto (https://ui.perfetto.dev) and chrome://tracing open; a step is shown as a microsecond.
#
# A process is an arena: its buffers are slices, on as few threads as keep those that live at the same time apart (slices of one thread must
# nest), and a counter has its live bytes. The first process has the schedule. Copies between two memories are a process with the steps in
# which each may run, and where times are known one with kernels and copies side by side, in microseconds. (Google, "Trace Event Format":
# complete events "X", counters "C", metadata "M".)


_SCHEDULE = 1
_SAID = ("offset", "size", "kind", "alias", "node", "dtype", "shape")

_COPY = ("tensor", "bytes", "step", "target_free", "source_ready", "before", "source_until")

Event = dict[str, Any]


def _trace(given: PlanJson, options: RenderOptions) -> bytes:
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


TRACE = Format("trace", ".trace.json", _trace, "a trace for Perfetto: live ranges over the steps")


# What a plan has together with its model: the certificate that no plan takes fewer bytes, the block of constants, and a program in C.
#
# The scripts check_*.py in onnxtile/check accept a certificate. Constants lie at the offsets that the plan and its C header give them. A
# program is FILE.c and, beside it, FILE.h, and the weights where they are in a file of their own.


_HINT = "plan a model, and emit this file with it"


def _certificate(plan: PlanJson, _options: RenderOptions) -> bytes:
    if not plan["schedule"]:
        from onnxtile.check.certificate import problem_certificate

        return as_json(problem_certificate(plan)).encode()
    if not isinstance(plan, PlanExport) or plan.certificate is None:
        raise UsageError("a plan alone does not hold the graph that a certificate is about", hint=_HINT)
    return as_json(plan.certificate()).encode()


def _constants(plan: PlanJson, _options: RenderOptions) -> bytes:
    if not isinstance(plan, PlanExport):
        raise UsageError("a plan alone does not hold the bytes of constants", hint=_HINT)
    return plan.constants()


CERTIFICATE = Format(
    "certificate",
    ".certificate.json",
    _certificate,
    "the proof that no plan takes fewer bytes, for a checker of its own",
)
CONSTANTS = Format("constants", ".bin", _constants, "the bytes of the constants, at the offsets of the C header")


def _files(plan: PlanJson, options: RenderOptions) -> Mapping[str, bytes]:
    if not isinstance(plan, PlanExport) or plan.firmware is None:
        raise UsageError("a plan alone does not hold the kernels of a program in C", hint=_HINT)
    return plan.firmware(options.title)


def _code(plan: PlanJson, options: RenderOptions) -> bytes:
    return _files(plan, options)[".c"]


C = Format(
    "c",
    ".c",
    _code,
    "a program in C that runs the model at the planned addresses, with a header (needs the extra c)",
    beside=(".h", ".weights.bin"),
    write_beside=lambda plan, options: {name: data for name, data in _files(plan, options).items() if name != ".c"},
)
