"""The result of planning: the document of a plan, how it was found, and what a search proved of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import TYPE_CHECKING, Any, ClassVar

from onnxtile.declare.plan_document import (
    ArenaFormula,
    Attributes,
    ByteTotals,
    Constant,
    CopyCount,
    Excluded,
    MemoryCopy,
    PlanDocument,
    PlannedInput,
    PlannedMovement,
    PlannedPart,
    PlannedState,
    PlanRow,
    SearchProof,
    SizeText,
)
from onnxtile.declare.verb import JsonFields, VerbResult
from onnxtile.model.formula import SizePieces, SizeRanges, read_size
from onnxtile.system.dataclass import dataclass
from onnxtile.system.errors import UsageError

if TYPE_CHECKING:
    from onnxtile.planning.offsets.problem import Buffer


def size_text(size: SizePieces) -> SizeText:
    """Return `size` as a document has it."""
    return SizeText(str(size), tuple(map(str, size.pieces)))


def size_pieces(text: SizeText, ranges: SizeRanges) -> SizePieces:
    """Return the size that `text` says in the dimensions of `ranges`."""
    formulas = [read_size(piece, ranges) for piece in text.pieces]
    return SizePieces(tuple(formula for formula in formulas if formula is not None))


def require_sizes(ranges: SizeRanges, sizes: Mapping[str, int]) -> None:
    """Raise UsageError unless `sizes` has a size in its range for each dimension of `ranges`, and no other dimension."""
    for name in sizes:
        if name not in ranges:
            listed = ", ".join(ranges) or "none"
            raise UsageError(f"the plan has no range of a dimension {name!r}", hint=f"those with a range: {listed}")
    for name, (low, high) in ranges.items():
        if name not in sizes:
            raise UsageError(f"the size of {name!r} is missing", hint=f"give one from {low} to {high}")
        if not low <= sizes[name] <= high:
            raise UsageError(
                f"the size {sizes[name]} of {name!r} is out of its range", hint=f"it is from {low} to {high}"
            )


MOVEMENTS = ("none", "activations", "weights")
"""The tensors that are copied between two memories: none, activations, or weights too."""
OUTSIDE, CONSTANTS = "outside", "constants"
"""Where a copy may read or write beside the arenas: memory of the caller, and the block of constants."""


@dataclass(frozen=True, kw_only=True)
class MovementResult(PlannedMovement):
    """The copies of a plan between two memories, and how few bytes any copies would move.

    No choice of whole tensors moves fewer than `lower_bound` bytes in this order of the kernels. In it, tensors share bytes only as in this
    plan: views, overwritten operands, and parts of Concats. `bound` says whether an exact "search" or a "relaxation" (parts of tensors may
    stay) proves this. With the same order, the same shared bytes, and any bytes of a tensor that stay, at least `parts_bound` bytes are
    copied. Every order copies at least `any_order_bound` bytes: those of inputs and weights that kernels read, and of outputs. `copies` are
    these copies in the order of the steps; `time` is what they take, None where no bandwidth is given.
    """

    copies: tuple[MemoryCopy, ...]
    lower_bound: int
    bound: str
    parts_bound: int
    any_order_bound: int


@dataclass(frozen=True)
class Inside(JsonFields):
    """The `bytes` that the nodes inside a meta-op need between them, run one by one: the peak of its own plan.

    None where a shape inside is not known. `node` is the call, with the path to it; `operator` is the meta-op. With `in_arena` a workspace
    in the arena holds these bytes; otherwise they are not part of the plan.
    """

    node: str
    operator: str
    bytes: int | None
    in_arena: bool


@dataclass(frozen=True, kw_only=True)
class KeptState(PlannedState):
    """A state that the plan keeps. `source` says how it is known: "given", by "names", or by the "operator" that makes the output."""

    source: str


@dataclass(frozen=True)
class ListedState(PlanRow):
    """A state that is planned as any input and output: the `axis` along which it grows, and how it is known.

    `input` and `output` are the tensors, `source` says how the pair is known.
    """

    input: str
    output: str
    source: str
    axis: int | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the fields of a state, without an address."""
        return {**dict.fromkeys(("arena", "offset", "size", "copied", "strides")), **vars(self)}


@dataclass(frozen=True, kw_only=True, repr=False)
class PlanResult(PlanDocument, VerbResult):
    """A plan that was just made: its document, of which nothing is left out, and how it was found.

    `ended` is the reason why the search ended (see offsets.problem.Ended). No plan of any order and any aliases is smaller than
    `any_order_bound` (None without a graph). `optimal_over` is "any order" if an optimal plan is as small as that, else "order"; None for a
    plan that is not optimal. `insides` are the meta-ops whose nodes need bytes between them, `listed` the states that are not kept.
    """

    verb: ClassVar[str] = "plan"

    optimal: bool
    io: str  # type: ignore[assignment]
    order: str  # type: ignore[assignment]  # that which was asked for: a document says "schedule" for most
    copies: CopyCount
    constants: tuple[Constant, ...]
    outside: tuple[Excluded, ...]
    unplanned: tuple[Excluded, ...]
    inputs: tuple[PlannedInput, ...] = ()
    outputs: tuple[PlannedInput, ...] = ()
    operators: tuple[str, ...] = ()
    constant_nodes: tuple[str, ...] = ()
    operands: tuple[tuple[str, ...], ...] = ()
    results: tuple[tuple[str, ...], ...] = ()
    attributes: tuple[Attributes, ...] = ()
    formulas: tuple[ArenaFormula, ...] | None = None
    movement: MovementResult | None = None
    states: tuple[KeptState, ...] = ()
    gap: int = field(init=False)
    totals: ByteTotals = field(init=False)

    planner: str
    ended: str
    optimal_over: str | None
    any_order_bound: int | None
    insides: tuple[Inside, ...] = ()
    listed: tuple[ListedState, ...] = ()

    def __post_init__(self) -> None:
        """Note what follows from the rest: how far the plan is from its bound, and the sums of its bytes."""
        object.__setattr__(self, "gap", self.arena_size - self.lower_bound)
        object.__setattr__(self, "totals", ByteTotals(self.arena_size, self.constant_bytes))

    @property
    def search(self) -> SearchProof:
        """What a search proved of the plan."""
        moved = self.movement
        bounds = () if moved is None else (moved.lower_bound, moved.parts_bound, moved.any_order_bound)
        return SearchProof(self.optimal_over, self.any_order_bound, bounds)

    def arena_size_at(self, sizes: Mapping[str, int], *, fixed: bool = False) -> int:
        """Return the bytes of all arenas at `sizes` of the dimensions that have a range.

        With `fixed`, the offsets of the plan are used, otherwise scaled offsets where there are some. Raises UsageError for a size that is
        missing or out of its range.
        """
        require_sizes(self.ranges, sizes)
        if not self.formulas:
            return self.arena_size
        texts = (arena.fixed if fixed else arena.least for arena in self.formulas)
        return sum(size_pieces(text, self.ranges).at(sizes) for text in texts)

    @property
    def constant_bytes(self) -> int:
        """The bytes of the constants that steps read, as stored: what lies in flash or beside the arenas."""
        return sum(constant.size or 0 for constant in self.constants)

    @property
    def arena_size(self) -> int:
        """The bytes of all arenas together."""
        return sum(arena.size for arena in self.arenas)

    @property
    def summary(self) -> str:
        """The size of the arena, how far that is from the least, and how many buffers it holds."""
        over = {"any order": "smallest of any order", "order": "smallest of this order"}
        state = over[self.optimal_over] if self.optimal_over else f"lower bound {self.lower_bound:,} bytes"
        return f"arena {self.arena_size:,} bytes, {state}, {len(self.buffers):,} buffers"

    def to_dict(self) -> dict[str, Any]:
        """Return the plan as docs/plan.schema.json describes it, and how it was found, ready for JSON."""
        entries = super().to_dict()
        states = [*entries.pop("states", ()), *entries.pop("listed")]
        return entries | ({"states": states} if states else {})


def planned_parts(buffer: Buffer) -> tuple[PlannedPart, ...]:
    """Return the parts of the outline of `buffer`."""
    return tuple(PlannedPart(p.start, p.end - p.start, p.lower, p.upper - 1) for p in buffer.outline)
