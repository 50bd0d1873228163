"""The rows of a plan by arena, and the live bytes of each arena over the steps."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from functools import partial
from itertools import accumulate, pairwise, repeat
from operator import add
from types import MappingProxyType
from typing import Any, TypeAlias

from onnxtile.kernels.kernel_graph import LivePart, rounded
from onnxtile.model.modules import ModulePath, dotted, module_path, shared_path
from onnxtile.report.format import PlanJson, RenderOptions
from onnxtile.system.dataclass import dataclass

BufferJson: TypeAlias = Mapping[str, Any]
"""A buffer of the plan."""


@dataclass(frozen=True)
class ArenaLayout:
    """One arena: its rows in the plan's order, and its live bytes, each buffer and part rounded outwards to the alignment.

    `live` are pairs of a step and the sum of live bytes from there on, wherever it changes; the first is of step 0, the last of the end.
    """

    name: str
    size: int
    capacity: int | None
    rows: tuple[BufferJson, ...] = field(repr=False)
    live: tuple[tuple[int, int], ...] = field(repr=False)

    @property
    def peak(self) -> int:
        """The largest sum of live bytes at any step."""
        return max(live for _, live in self.live)

    @property
    def peak_step(self) -> int:
        """The first step at which the peak is reached."""
        return max(self.live, key=lambda sums: sums[1])[0]

    @property
    def gap(self) -> int:
        """The bytes that the arena takes above its peak: fragmentation."""
        return max(self.size - self.peak, 0)


def pieces(row: BufferJson) -> list[BufferJson]:
    """Return `row` as rectangles of bytes and steps: one for each of its parts, or itself."""
    if not row.get("parts"):
        return [row]
    whole = {key: value for key, value in row.items() if key != "parts"}
    return [
        {**whole, "offset": row["offset"] + part["start"], **{key: part[key] for key in ("size", "first", "last")}}
        for part in row["parts"]
    ]


def retimed(row: BufferJson, start_of: Callable[[int], int]) -> BufferJson:
    """Return `row` with its steps on another line of time, where a step begins at `start_of` the step. Parts without steps are left out."""
    moved = {**row, "first": start_of(row["first"]), "last": start_of(row["last"] + 1) - 1}
    if row.get("parts"):
        parts = [retimed(part, start_of) for part in row["parts"]]
        moved["parts"] = [part for part in parts if part["first"] <= part["last"]]
    return moved


def owners(plan: PlanJson) -> list[BufferJson]:
    """Return the buffers that own their bytes: all that are no alias."""
    return [row for row in plan["buffers"] if row.get("alias") is None]


def runs(plan: PlanJson) -> list[tuple[int, str]]:
    """Return the step of each node and its name, in the order of the schedule; of a bare problem there are none."""
    schedule = plan.get("schedule") or ()
    return list(zip(plan.get("steps") or range(len(schedule)), schedule, strict=True))


def steps(plan: PlanJson) -> int:
    """Return how many steps the plan has; a plan of a bare problem has as many as its lives need."""
    lives = max((row["last"] + 1 for row in plan["buffers"]), default=0)
    return max(lives, max((step + 1 for step, _ in runs(plan)), default=0))


def first_step(plan: PlanJson) -> int:
    """Return the first step of any live range: a schedule may begin with constants."""
    return min((row["first"] for row in plan["buffers"]), default=0)


def step_names(plan: PlanJson) -> dict[int, str]:
    """Return the nodes of each step by name, several with commas between; a bare problem has none."""
    names: dict[int, list[str]] = {}
    for step, node in runs(plan):
        names.setdefault(step, []).append(node)
    return {step: ", ".join(nodes) for step, nodes in names.items()}


def arenas(plan: PlanJson) -> tuple[ArenaLayout, ...]:
    """Return the layout of each arena, in the plan's order."""
    end, unit = steps(plan), plan.get("alignment") or 1
    held: dict[str, list[BufferJson]] = {arena["name"]: [] for arena in plan["arenas"]}
    for row in plan["buffers"]:
        held.setdefault(row["arena"], []).append(row)
    facts = {arena["name"]: arena for arena in plan["arenas"]}
    return tuple(
        ArenaLayout(
            name=name,
            size=facts.get(name, {}).get("size") or max((row["offset"] + row["size"] for row in rows), default=0),
            capacity=facts.get(name, {}).get("capacity"),
            rows=tuple(rows),
            live=_live(rows, end, unit),
        )
        for name, rows in held.items()
    )


def rectangles(arena: ArenaLayout) -> Iterator[tuple[BufferJson, BufferJson]]:
    """Yield the rows of `arena`, each with every rectangle of it, in the order of drawing: what lies in another's bytes comes last."""
    for row in sorted(arena.rows, key=lambda row: row.get("alias") is not None):
        for piece in pieces(row) if row.get("alias") is None else [row]:
            yield row, piece


def arenas_in_use(plans: Iterable[PlanJson]) -> list[tuple[ArenaLayout, ...]]:
    """Return the arenas of each plan without those in which, in all of the plans, nothing lies; the first stays in any case."""
    layouts = [arenas(plan) for plan in plans]
    most = max(map(len, layouts), default=0)
    used = {i for i in range(most) if any(i < len(layout) and layout[i].rows for layout in layouts)} or {0}
    return [tuple(arena for i, arena in enumerate(layout) if i in used) for layout in layouts]


def _blocks(row: BufferJson, unit: int) -> Iterable[LivePart]:
    """Return the live bytes of `row`, rounded outwards to multiples of `unit`, with half-open steps."""
    if not row.get("parts"):
        return [LivePart(0, -(-row["size"] // unit) * unit, row["first"], row["last"] + 1)]
    parts = row["parts"]
    return rounded((LivePart(p["start"], p["start"] + p["size"], p["first"], p["last"] + 1) for p in parts), unit)


def _live(rows: list[BufferJson], end: int, unit: int) -> tuple[tuple[int, int], ...]:
    changes = {0: 0, end: 0}
    for row in rows:
        for start, stop, first, last in _blocks(row, unit) if row.get("alias") is None else ():
            changes[first] = changes.get(first, 0) + stop - start
            changes[last] = changes.get(last, 0) - (stop - start)
    order = sorted(changes)
    sums = accumulate(changes[step] for step in order)
    return tuple(zip(order, sums, strict=True))


# Bodies of If, Loop, Scan and functions, for formats that cannot hold a plan within a plan.
#
# A tensor of a body is named by its path: the node, the attribute that holds the body (none for a function), and its own name. It lies in
# the workspace of its node.

PlanOrBodyJson: TypeAlias = Mapping[str, Any]
"""A whole plan, or the plan of a body: both have buffers, a schedule, steps, and bodies."""


def rows_with_bodies(plan: PlanJson) -> list[BufferJson]:
    """Return the rows of `plan` and of its bodies, which are alive in the step of the main graph's node that they belong to."""
    start = {node: step for step, node in runs(plan)}
    rows = list(plan["buffers"])
    for body in plan.get("bodies") or ():
        step = start[body["node"]]
        lodged = _rows_in_workspace(body, unrolled(body)["buffers"], plan)
        rows += [{**row, "first": step, "last": step, "parts": []} for row in lodged]
    return rows


def unrolled(plan: PlanOrBodyJson) -> PlanJson:
    """Return `plan` on one line of time: a step whose node has bodies is as long as these, one after the other, each run once.

    A plan without bodies stays as it is.
    """
    if not plan.get("bodies"):
        return plan
    inside: dict[str, list[tuple[PlanOrBodyJson, PlanJson]]] = {}
    for body in plan["bodies"]:
        inside.setdefault(body["node"], []).append((body, unrolled(body)))
    widths: dict[int, int] = {}
    for step, node in runs(plan):
        if node in inside:
            widths[step] = max(widths.get(step, 1), sum(steps(inner) for _, inner in inside[node]))
    wide = sorted(widths)
    added = list(accumulate((widths[step] - 1 for step in wide), initial=0))

    def start_of(step: int) -> int:
        return step + added[bisect_left(wide, step)]

    rows = [retimed(row, start_of) for row in plan["buffers"]]
    nodes = [(start_of(step), node, operator) for step, node, operator in _nodes(plan)]
    constant = list(plan.get("constant_nodes") or ())
    for step, node in runs(plan):
        start = start_of(step)
        for body, inner in inside.get(node, ()):
            lodged = _rows_in_workspace(body, inner["buffers"], plan)
            rows += [retimed(row, partial(add, start)) for row in lodged]
            nodes += [(start + at, _path_name(body, name), operator) for at, name, operator in _nodes(inner)]
            constant += [_path_name(body, name) for name in inner.get("constant_nodes") or ()]
            start += steps(inner)
    nodes.sort(key=lambda entry: entry[0])
    fields: dict[str, Any] = dict(
        zip(("steps", "schedule", "operators"), map(list, zip(*nodes, strict=True)), strict=True)
    )
    timed = {**fields, "constant_nodes": constant}
    return {**plan, "buffers": rows, **timed, "bodies": []}


def _nodes(plan: PlanOrBodyJson) -> Iterator[tuple[int, str, str | None]]:
    """Yield the step, the name and the operator of each node of `plan`, as far as that is known."""
    operators = plan.get("operators") or repeat(None)
    for (step, node), operator in zip(runs(plan), operators, strict=False):
        yield step, node, operator


def flat(plan: PlanJson) -> PlanJson:
    """Return `plan` unrolled, with the buffers of bodies in place of their workspaces, as one graph."""
    rows = unrolled(plan)["buffers"]
    workspaces = {row["name"] for row in rows if row["kind"] == "workspace"} & {row.get("alias") for row in rows}
    return (
        {**unrolled(plan), "buffers": list(_without(workspaces, rows, plan.get("alignment") or 1))}
        if workspaces
        else plan
    )


def _without(workspaces: set[str], rows: list[BufferJson], unit: int) -> Iterator[BufferJson]:
    ends: dict[str, int] = {}
    for row in rows:
        if row.get("alias") in workspaces:
            end = -(-(row["offset"] + row["size"]) // unit) * unit
            ends[row["alias"]] = max(ends.get(row["alias"], 0), end)
    for row in rows:
        owner = {**row, "alias": None} if row.get("alias") in workspaces else row
        rest = row["offset"] + row["size"] - ends.get(row["name"], 0)
        if row["name"] not in workspaces:
            yield owner
        elif rest > 0:  # further bytes of the kernel come after its bodies
            yield {**owner, "offset": ends[row["name"]], "size": rest}


def _rows_in_workspace(body: PlanOrBodyJson, rows: list[BufferJson], around: PlanOrBodyJson) -> Iterator[BufferJson]:
    """Yield the rows of `body` with the path to it in their names; owners become aliases of the workspace of the node in `around`."""
    workspaces = (
        row["name"] for row in around["buffers"] if row["kind"] == "workspace" and row.get("node") == body["node"]
    )
    workspace = next(workspaces, None)
    for row in rows:
        owner, maker = row.get("alias"), row.get("node")
        yield {
            **row,
            "name": _path_name(body, row["name"]),
            "alias": workspace if owner is None else _path_name(body, owner),
            "node": None if maker is None else _path_name(body, maker),
        }


def _path_name(body: PlanOrBodyJson, name: str) -> str:
    return "/".join(part for part in (body["node"], body["attribute"], name) if part is not None)


# The layer of each node, read from the modules around it.

_COUNTED = re.compile(r"(.*[._])?\d+")
"""A module that is one of several: `layers.3`, `h_2`, or `5`."""
_COUNTED_INSIDE = re.compile(r"(.*\.)?\d+")
"""The same right inside such a module, where `norm_1` is a part of the layer."""


def layer_names(nodes: Iterable[str], modules: Mapping[str, ModulePath] = MappingProxyType({})) -> dict[str, str]:
    """Return the layer of each of `nodes`; empty where the modules around them tell no two layers apart.

    `modules` has the modules of nodes by name; for other nodes, the name says them. A layer is the path to the first counted module, with
    counted modules right inside it: a node in `m.encoder.layers.0.blocks.1.attn` is of `layers.0.blocks.1`. A node outside of counted
    modules is of its outermost module; one outside of all is of "model".
    """
    paths = {node: _modules_of(node, modules) for node in nodes}
    shared = len(shared_path(path for path in paths.values() if path))
    layers = {node: _layer(path, shared) for node, path in paths.items()}
    return layers if len(set(layers.values())) > 1 else {}


def _modules_of(node: str, modules: Mapping[str, ModulePath]) -> ModulePath:
    """Return the modules around `node`, or around the node in whose body it is, whose name is before its own."""
    outer = node
    while outer not in modules:
        outer, slash, _ = outer.rpartition("/")
        if not slash:
            return module_path(node, {})
    return modules[outer]


def _layer(path: ModulePath, shared: int) -> str:
    """Return the layer that `path` says, of whose modules the first `shared` are around all nodes."""
    start = next((i for i in range(shared, len(path)) if _COUNTED.fullmatch(path[i])), None)
    if start is None:
        return path[shared] if len(path) > shared else "model"
    end = start + 1
    while end < len(path) and _COUNTED_INSIDE.fullmatch(path[end]):
        end += 1
    # A number alone counts the parts of the module around it.
    return dotted(path[max(start - path[start].isdecimal(), 0) : end])


# A plan as pictures show it: on one line of time, without steps that only make constants, each row with its operator and layer.


def shown(plan: PlanJson) -> PlanJson:
    """Return `plan` with bodies unrolled, without steps that only make constants, and with `operator` and `layer` in each row.

    Either is None for a row that no node makes. Steps are numbered again, as the picture shows them.
    """
    whole = _without_constant_steps(unrolled(plan))
    nodes = [node for _, node in runs(whole)]
    operators = dict(zip(nodes, whole.get("operators") or (), strict=False))
    layers = layer_names(nodes, getattr(plan, "modules", {}))
    return {**whole, "buffers": [_described(row, operators, layers) for row in whole["buffers"]]}


@dataclass(frozen=True)
class PlanSide:
    """A plan in a picture, as `shown` returns it, with its arenas in use; `said` tells it from the other plan, if there is one."""

    said: str
    plan: PlanJson
    arenas: tuple[ArenaLayout, ...]


def sides(plan: PlanJson, options: RenderOptions) -> list[PlanSide]:
    """Return what a picture of `plan` shows: also the plan before, if `options` name one."""
    given = {"before": options.before, "after": plan} if options.before is not None else {"": plan}
    plans = list(map(shown, given.values()))
    return list(map(PlanSide, given, plans, arenas_in_use(plans)))


def _described(row: BufferJson, operators: dict[str, str], layers: dict[str, str]) -> BufferJson:
    node = row.get("node")
    return {**row, "operator": operators.get(node or ""), "layer": layers.get(node or "")}


def _without_constant_steps(plan: PlanJson) -> PlanJson:
    """Return `plan` without the steps in which every node makes constants only, unless all of a buffer's life is in them."""
    constant = frozenset(plan.get("constant_nodes") or ())
    if not constant:
        return plan
    busy = {step for step, node in runs(plan) if node not in constant}
    free = sorted({step for step, _ in runs(plan)} - busy)
    lives = {(row["first"], row["last"] + 1) for row in plan["buffers"]}
    needed = {first for first, end in lives if _steps_left_before(first, free) == _steps_left_before(end, free)}
    free = [step for step in free if step not in needed]
    rows = [retimed(row, lambda step: _steps_left_before(step, free)) for row in plan["buffers"]]
    return {**plan, "buffers": rows, **_kept_nodes(plan, free)}


def _steps_left_before(step: int, free: list[int]) -> int:
    """Return how many steps before `step` are not in the sorted list `free`."""
    return step - bisect_left(free, step)


def _kept_nodes(plan: PlanJson, free: Iterable[int]) -> dict[str, Any]:
    """Return the schedule of `plan`, with steps and operators, without its steps in `free`."""
    left_out = sorted(free)
    without = frozenset(left_out)
    entries = [
        (_steps_left_before(step, left_out), step, at) for at, (step, _) in enumerate(runs(plan)) if step not in without
    ]
    columns: dict[str, Any] = {key: plan.get(key) or () for key in ("schedule", "operators")}
    return {
        "steps": [number for number, _, _ in entries],
        **{key: [column[at] for _, _, at in entries] for key, column in columns.items() if column},
    }


# The live bytes of a plan over its steps, in a line of text.

_BLOCKS = " ▁▂▃▄▅▆▇█"


def live_line(sizes: Sequence[int], top: int) -> str:
    """Return a bar for each of `sizes` (bytes), the highest for `top`; none is for 0 only."""
    return "".join(_BLOCKS[-(-size * (len(_BLOCKS) - 1) // top) if top else 0] for size in sizes)


def live_sizes(plan: PlanJson, count: int) -> list[int]:
    """Return the most live bytes of all arenas in each of `count` spans of the steps of `plan`, those that only make constants left out."""
    counted = shown(plan)
    start, end = first_step(counted), max(steps(counted), 1)
    edges = [start + (end - start) * i // count for i in range(count + 1)]
    changes: dict[int, int] = {}
    for arena in arenas(counted):
        before = 0
        for step, live in arena.live:
            changes[step] = changes.get(step, 0) + live - before
            before = live
    sums, live = [], 0
    for step in sorted(changes):
        live += changes[step]
        sums.append((step, live))
    return [_most(sums, first, max(last, first + 1)) for first, last in pairwise(edges)]


def _most(sums: Sequence[tuple[int, int]], first: int, end: int) -> int:
    """Return the largest of the sums that hold from their steps on, from the step `first` to before `end`."""
    before = max((at for at, (step, _) in enumerate(sums) if step <= first), default=0)
    return max((live for step, live in sums[before:] if step < end), default=0)
