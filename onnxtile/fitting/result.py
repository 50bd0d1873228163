"""The result of fit: the costs of a model before and after, the steps between, and the reason where nothing fits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any

from onnxtile.declare.plan_document import PlannedBuffer, PlannedPart, PlannedStream
from onnxtile.declare.verb import JsonFields
from onnxtile.fitting.floor import Floor, LivePiece
from onnxtile.fitting.live_bytes import RegionTrace
from onnxtile.fitting.regions import Regions
from onnxtile.fitting.rewrites.rewrite import ModelRewrite
from onnxtile.fitting.strips import RegionCost
from onnxtile.planning.result import PlanResult
from onnxtile.system.dataclass import dataclass


@dataclass(frozen=True)
class ModelCost(JsonFields):
    """The costs of a model: the bytes of its arena and of its peak, multiply-accumulates, nodes, and the bytes that cutting copies.

    `seconds` are an estimate of its time, by the speeds of a target. `arena`, `peak` and `copied` are bytes, `macs` multiply-accumulates;
    `nodes` counts nodes.
    """

    arena: int
    peak: int
    macs: int
    nodes: int
    copied: int = 0
    seconds: float = 0.0


@dataclass(frozen=True)
class InputPlace(JsonFields):
    """The bytes of the arena before and after with inputs `inside` it, or outside; with `at_most`, a plan may find fewer after.

    `before` and `after` are bytes.
    """

    inside: bool
    before: int
    after: int
    at_most: bool = False


@dataclass(frozen=True)
class StreamedInput(JsonFields):
    """An input that comes row by row: the `stream` as the plan has it, and the most bytes of its rows that live in the arena at once.

    Rows that are joined, or are parts of others, count as long as they are in both. `most_bytes` are these bytes.
    """

    stream: PlannedStream
    most_bytes: int

    def to_dict(self) -> dict[str, Any]:
        """Return the fields of the stream, and the bytes, ready for JSON."""
        return {**self.stream.to_dict(), "most_bytes": self.most_bytes}


def streamed_of(planned: PlanResult) -> tuple[StreamedInput, ...]:
    """Return the inputs of a plan that come row by row, with the bytes that their rows take."""
    return tuple(StreamedInput(stream, _most_bytes(stream.input, planned)) for stream in planned.streamed)


def _most_bytes(name: str, planned: PlanResult) -> int:
    """Return the most bytes that live at once of the rows of an input, as they are read, cut and joined."""
    rows = {name}
    for operator, operands, results in zip(planned.operators, planned.operands, planned.results, strict=True):
        if operator in {"Slice", "Concat"} and operands[0] in rows:
            rows.update(results)
    changes = dict.fromkeys(planned.steps, 0)
    owners = (buffer for buffer in planned.buffers if buffer.alias is None and buffer.name in rows)
    for part, size in (pair for buffer in owners for pair in _parts(buffer, 1)):
        changes[part.first] = changes.get(part.first, 0) + size
        changes[part.last + 1] = changes.get(part.last + 1, 0) - size
    return max(accumulate(changes[step] for step in sorted(changes)), default=0)


@dataclass(frozen=True)
class FitStep:
    """A run of kernels that was cut: how, and what that costs. `peak` is the largest sum of live bytes in it.

    `kind` is "strip", "patch" (rows are computed again), "channels", or the kind of a rewrite. `nodes` are the kernels, `strips` and
    `chunks` how many there are of each. `kept` counts the tensors of which rows stay for the next strip. `hand_over` says how the result is
    left: "pieces", "join" (strips are copied into one tensor), or "in place". `extra_macs` are multiply-accumulates beyond those of the
    kernels, `pieces` counts the nodes written, and `copied` are bytes. `rewrite` names the rewrite that was made before the cut; it is
    empty for a run that was cut.
    """

    kind: str
    nodes: tuple[str, ...]
    strips: int
    kept: int
    chunks: int
    hand_over: str
    extra_macs: int
    peak: int
    pieces: int
    copied: int
    rewrite: str = ""

    @property
    def text(self) -> str:
        """The nodes, and how they are cut or rewritten, in a line."""
        if self.rewrite:
            return f"{', '.join(self.nodes[:3])}{', ...' if len(self.nodes) > 3 else ''}: {self.rewrite}"
        first, last = self.nodes[0], self.nodes[-1]
        cuts = [f"{self.strips} strips"] * (self.strips > 1)
        cuts += ["rows kept"] * (self.kept > 0) + [f"channels by {self.chunks}"] * (self.chunks > 1)
        cuts += ["handed over in pieces"] * (self.hand_over == "pieces")
        run = first if first == last else f"{first} to {last}"
        return f"{run}: {', '.join(cuts)}"

    def to_dict(self) -> dict[str, Any]:
        """Return the fields, ready for JSON."""
        return {**vars(self), "nodes": list(self.nodes), "grid": [self.strips, 1], "text": self.text}


def steps_of(regions: Regions, chosen: tuple[RegionCost, ...]) -> tuple[FitStep, ...]:
    """Return a step for each region that is cut."""
    return tuple(_step(regions, region) for region in chosen if not region.is_whole)


def steps_before(rewrites: tuple[ModelRewrite, ...]) -> tuple[FitStep, ...]:
    """Return a step for each rewrite that was made before the model was cut."""
    return tuple(FitStep(rewrite.kind, rewrite.nodes, 1, 0, 1, "", 0, 0, 0, 0, rewrite.text) for rewrite in rewrites)


def _step(regions: Regions, region: RegionCost) -> FitStep:
    trace = regions.trace(region)
    before = regions.network.kernels[region.start : region.stop]
    kind = "patch" if region.cut.recomputed else "strip" if trace.strips > 1 else "channels"
    return FitStep(
        kind=kind,
        nodes=tuple(part.name for kernel in before for part in kernel.members),
        strips=trace.strips,
        kept=trace.kept,
        chunks=max((count for _, count in region.cut.chunks), default=1),
        hand_over=_hand_over(regions, region, trace),
        extra_macs=region.macs - sum(kernel.macs for kernel in before),
        peak=region.peak,
        pieces=region.nodes,
        copied=region.copied,
    )


def _hand_over(regions: Regions, region: RegionCost, trace: RegionTrace) -> str:
    """Return `pieces` for results that are not joined, `join` for strips that are copied into one tensor; else `in place`."""
    if any(tensor in trace.pieces for tensor in region.cut.parted):
        return "pieces"
    results = [regions.network.tensors[tensor] for tensor in regions.results(region.start, region.stop)]
    is_joined = trace.strips > 1 and any(not about.has_contiguous_rows for about in results)
    return "join" if is_joined else "in place"


@dataclass(frozen=True)
class Obstacle(JsonFields):
    """The reason why nothing smaller was found: the peak of the smallest plan, the `kernel` that runs there, and what lives then.

    `nodes` are the kernels that are cut together with this one. `tensors` have the bytes that live there, as they lie in the plan: those of
    whole tensors, or of their pieces; together they are the peak. `reasons` say how the kernel is cut, and which kernels around it are not
    cut into rows. `outputs` are the bytes of the outputs of the model, which live to the end. `search` says why the search ended:
    `exhausted` where it tried all ways that it knows, `bound` where the bound of its work ended it, so that a smaller arena may exist, and
    `floor` where no search was needed. No way to cut the model takes less than `floor` bytes (0: not known).
    `peak` is in bytes.
    """

    peak: int
    kernel: str
    nodes: tuple[str, ...]
    tensors: tuple[str, ...]
    reasons: tuple[str, ...]
    outputs: int = 0
    search: str = "exhausted"
    floor: int = 0

    @property
    def live(self) -> str:
        """What lives at the peak, and the rule that is missing, in a line; empty where nothing is named."""
        more = " ..." if len(self.tensors) > 3 else ""
        named = f"{', '.join(self.tensors[:3])}{more}"
        if not self.tensors and not self.kernel:
            return ""
        where = f"while {self.kernel} runs" if self.kernel else f"the outputs live to the end: {named}"
        where += f", {named} live" if self.kernel and self.tensors else ""
        return f"{where}; {self.reasons[0]}" if self.search == "floor" and self.reasons else where


def obstacle_at(floor: Floor, regions: Regions) -> Obstacle:
    """Return what is in the way of a plan below a floor: the kernel that takes so many bytes, what lives then, and the missing rule."""
    network = regions.network
    tensors = tuple(
        f"{_share_of(piece)}{network.tensors[piece.tensor].name} ({piece.bytes:,} bytes)"
        for piece in sorted(floor.pieces, key=lambda piece: -piece.bytes)
    )
    outputs = sum(regions.size_of(about) for about in network.tensors if about.is_kept)
    if floor.kernel is None:
        return Obstacle(floor.bytes, "", (), tensors, (), outputs, "floor", floor.bytes)
    kernel = network.kernels[floor.kernel].name
    reasons = (f"{kernel}: {floor.rule}",)
    return Obstacle(floor.bytes, kernel, (kernel,), tensors, reasons, outputs, "floor", floor.bytes)


def _share_of(piece: LivePiece) -> str:
    """Return how many rows of a tensor a piece has, before the name of the tensor; empty for all of them, a part for less than one."""
    if piece.is_whole or not piece.rows:
        return "" if piece.is_whole else "a part of "
    return "a row of " if piece.rows == 1 else f"{piece.rows:,} rows of "


def obstacle_of(
    planned: PlanResult, regions: Regions, chosen: tuple[RegionCost, ...], *, is_cut_short: bool, floor: int
) -> Obstacle:
    """Return what is in the way of a plan smaller than the one `planned`, of the model into which the `chosen` regions were written.

    `is_cut_short` says that the bound of its work ended the search; no way to cut the model takes less than `floor` bytes.
    """
    network = regions.network
    step, held = _busiest(planned)
    ran = next((node for node, at in zip(planned.schedule, planned.steps, strict=True) if at == step), "")
    numbers = {about.name: number for number, about in enumerate(network.tensors)}
    # What joins the pieces of a tensor is named after that.
    places = {network.tensors[tensor].name: index for tensor, index in regions.makers.items()}
    places |= {part.name: index for index, kernel in enumerate(network.kernels) for part in kernel.members}
    index = places.get(_origin(ran, places))
    kernel = ran if index is None else network.kernels[index].name
    of_tensors: dict[str, list[int]] = {}
    for buffer, size in held:
        of_tensors.setdefault(_origin(buffer.name, numbers), []).append(size if buffer.name in numbers else -size)
    region = None if index is None else next(region for region in chosen if region.start <= index < region.stop)
    alive = {numbers[name] for name in of_tensors if name in numbers}
    joined = ran.partition("/join/region")[0]
    copied = [f"{joined}: a copy joins its pieces, which live beside it"] if joined in numbers and joined != ran else []
    return Obstacle(
        sum(size for _, size in held),
        kernel,
        (kernel,) if region is None else tuple(each.name for each in network.kernels[region.start : region.stop]),
        tuple(_held(name, sizes) for name, sizes in sorted(of_tensors.items(), key=lambda item: -_total(item[1]))),
        (*(() if region is None or index is None else _reasons(regions, region, index, alive)), *copied),
        sum(regions.size_of(about) for about in network.tensors if about.is_kept),
        "bound" if is_cut_short else "exhausted",
        floor,
    )


def _busiest(planned: PlanResult) -> tuple[int, list[tuple[PlannedBuffer, int]]]:
    """Return the step at which most bytes live, the first of several, and the buffers that live there, with their bytes."""
    owners = [buffer for buffer in planned.buffers if buffer.alias is None]
    changes = dict.fromkeys(planned.steps, 0)
    parts = [(part.first, part.last + 1, size) for buffer in owners for part, size in _parts(buffer, planned.alignment)]
    for first, end, size in parts:
        changes[first] = changes.get(first, 0) + size
        changes[end] = changes.get(end, 0) - size
    steps = sorted(changes)
    live = list(accumulate(changes[step] for step in steps))
    step = steps[live.index(max(live))] if live else 0
    sizes = {
        buffer: sum(size for part, size in _parts(buffer, planned.alignment) if part.first <= step <= part.last)
        for buffer in owners
    }
    return step, [(buffer, size) for buffer, size in sizes.items() if size]


def _parts(buffer: PlannedBuffer, unit: int) -> list[tuple[PlannedBuffer | PlannedPart, int]]:
    """Return the live ranges of the bytes of a buffer, with their sizes; of one without parts, its own, with its aligned size."""
    if buffer.parts:
        return [(part, part.size) for part in buffer.parts]
    return [(buffer, -(-buffer.size // unit) * unit)]


def _origin(name: str, known: Mapping[str, int]) -> str:
    """Return the name in the network of a kernel or a tensor; one of a region is a piece, with more words after the name."""
    whole = name
    while whole not in known and "/region" in name and "/" in whole:
        whole = whole.rpartition("/")[0]
    return whole if whole in known else name


def _total(sizes: Sequence[int]) -> int:
    return sum(map(abs, sizes))


def _held(name: str, sizes: Sequence[int]) -> str:
    """Return the bytes that a tensor takes; those of pieces are negative."""
    pieces = sum(size < 0 for size in sizes)
    what = name if not pieces else f"{pieces} pieces of {name}" if pieces > 1 else f"a piece of {name}"
    return f"{what} ({_total(sizes):,} bytes)"


def _reasons(regions: Regions, region: RegionCost, index: int, alive: set[int]) -> dict[str, None]:
    """Return how the kernel at `index` is cut in its region, and why kernels are not cut into rows: those of the region, and those that
    make or read what is `alive`."""
    kernels = regions.network.kernels
    around = (kernel for kernel in kernels if not alive.isdisjoint((*kernel.reads, *kernel.makes)))
    uncut = [kernel for kernel in (kernels[index], *kernels[region.start : region.stop], *around) if kernel.reason]
    first = [] if kernels[index].reason else [f"{kernels[index].name}: {_manner(regions, region, index)}"]
    return dict.fromkeys([*first, *(f"{kernel.name}: {kernel.reason}" for kernel in uncut)])


def _manner(regions: Regions, region: RegionCost, index: int) -> str:
    """Return how the rows and the channels of a kernel are cut."""
    strips = 1 if region.is_whole else regions.trace(region).strips
    groups = [first for first, group in regions.groups.items() if index in group.places]
    chunks = max((count for first, count in region.cut.chunks if first in groups), default=1)
    rows = (
        f"its rows are in {strips} strips"
        if strips > 1
        else "its rows are not cut, since no cut that was tried takes less"
    )
    if chunks > 1:
        return f"{rows}; its channels are in {chunks} chunks"
    channels = (
        "its channels are not cut" if groups else "no rule cuts its channels, which are not hidden between two products"
    )
    return f"{rows}; {channels}"
