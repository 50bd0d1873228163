"""The result of planning, as plain data that `--json` writes and the reports draw."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeAlias

from onnxtile.declare.plan_document import (
    FIXED,
    VERSION,
    CopyCount,
    FixedRules,
    MemoryCopy,
    PlannedPart,
    TransferTime,
    WrittenRow,
)
from onnxtile.declare.verb import VerbResult
from onnxtile.model.formula import SizeFormula, SizePieces, SizeRanges
from onnxtile.system.errors import UsageError

# The bytes of an arena as formulas of the dimensions that have a range.


@dataclass(frozen=True)
class ArenaFormula(WrittenRow):
    """The bytes of an arena as formulas of the dimensions that have a range.

    `fixed` is the size with the offsets of the plan, `scaled` that with the scaled offsets of its buffers (None without such offsets).
    `peak` is the largest sum of live bytes in one step; None where buffers are live in parts, a state keeps
    its largest size, or the bytes of a tensor have no formula.
    """

    name: str
    fixed: SizePieces
    scaled: SizePieces | None
    peak: SizePieces | None

    @property
    def least(self) -> SizePieces:
        """The smaller of the sizes: with scaled offsets where there are some."""
        return self.fixed if self.scaled is None else self.scaled

    def to_dict(self) -> dict[str, Any]:
        """Return the formulas as Python expressions, and the pieces of which each is the largest."""
        forms = {"fixed": self.fixed, "scaled": self.scaled, "peak": self.peak}
        told = {
            key: form and {"bytes": str(form), "pieces": list(map(str, form.pieces))} for key, form in forms.items()
        }
        return {"name": self.name, **told}


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


# The copies between memories in a published plan, as plain data.

MOVEMENTS = ("none", "activations", "weights")
"""The tensors that are copied between two memories: none, activations, or weights too."""
OUTSIDE, CONSTANTS = "outside", "constants"
"""Where a copy may read or write beside the arenas: memory of the caller, and the block of constants."""


@dataclass(frozen=True)
class PlannedMovement(WrittenRow):
    """The copies of a plan between the memory `fast` and the memory `slow`.

    They move `bytes` bytes, of which `forced` are the first copies of inputs and weights, and the only ones of outputs. No choice of whole
    tensors moves fewer than `lower_bound` bytes in this order of the kernels, each tensor with bytes of its own but for the
    views, overwritten operands and parts of Concats of this plan. `bound` says whether an exact "search" or a "relaxation" (parts of
    tensors may stay) proves this. With the same order, the same shared bytes, and any bytes of a tensor that stay, at least `parts_bound`
    bytes are copied.
    Every order copies at least `any_order_bound` bytes: those of inputs and weights that kernels read, and of outputs.
    """

    fast: str
    slow: str
    weights: bool
    bytes: int
    forced: int
    lower_bound: int
    bound: str
    parts_bound: int
    any_order_bound: int
    copies: tuple[MemoryCopy, ...]
    time: TransferTime | None = None


AttributeValue: TypeAlias = int | float | str | tuple[int, ...] | tuple[float, ...] | tuple[str, ...]
"""The value of an attribute; a float that is not finite is one of the texts "inf", "-inf" and "nan"."""
Attributes: TypeAlias = Mapping[str, AttributeValue]
"""The attributes of a node that are numbers, texts, or lists of these, by name."""


@dataclass(frozen=True)
class PlannedInput(WrittenRow):
    """An input of the model: its element type as onnx names it ("FLOAT"), and its sizes; None where one is not known.

    Over ranges, `shape_formula` has the sizes as formulas.
    """

    OPTIONAL = frozenset({"shape_formula"})

    name: str
    dtype: str | None
    shape: tuple[int, ...] | None
    shape_formula: tuple[SizeFormula, ...] | None = None


@dataclass(frozen=True)
class PlannedOutput(PlannedInput):
    """An output of the model, described as an input is."""


@dataclass(frozen=True)
class PlannedBuffer(WrittenRow):
    """A tensor at an address: `size` bytes from `offset` of the arena `arena`, live from step `first` to step `last` inclusive.

    `kind` is "output" or "input" for tensors that the caller reads or writes, "workspace" for bytes that a node needs beside its operands
    and results, else "activation". `alias` names the tensor that owns the bytes, if it is another; the live range of an owner covers all
    tensors in its bytes. `node` is the node that makes it, by its name in the schedule; `shape` has its sizes, `dtype` its element type in
    onnx's spelling ("FLOAT"). `parts` of an owner are its live bytes, where some live for fewer steps than the whole; empty where all
    bytes are live from `first` to `last`. In a plan over ranges of dimensions, `offset`, `size` and `shape` are those of the largest sizes.
    There, `size_formula` and `shape_formula` have those of all sizes, and `scaled_offset` the offset in an arena that scales with them.
    `strides` of a tensor that is not contiguous are the bytes from one element to the next on each axis, `strides_formula` those at all
    sizes; None for a contiguous tensor.
    """

    OPTIONAL = frozenset({"parts", "strides", "size_formula", "shape_formula", "strides_formula", "scaled_offset"})

    name: str
    arena: str
    offset: int
    size: int
    first: int
    last: int
    kind: str
    alias: str | None = None
    node: str | None = None
    dtype: str | None = None
    shape: tuple[int, ...] | None = None
    strides: tuple[int, ...] | None = None
    size_formula: SizeFormula | None = None
    shape_formula: tuple[SizeFormula, ...] | None = None
    strides_formula: tuple[SizeFormula, ...] | None = None
    scaled_offset: SizePieces | None = None
    parts: tuple[PlannedPart, ...] = ()


@dataclass(frozen=True)
class PlannedBody(WrittenRow):
    """The plan of the body in `attribute` of the node `node`, in `size` bytes of the node's workspace.

    An `attribute` of None is the body of the function that the node calls; its values and nodes have their names in the function.

    Its nodes, buffers and bodies are described as in a whole plan. Offsets count from the start of the
    arena, steps from the start of the body.
    """

    node: str
    attribute: str | None
    size: int
    schedule: tuple[str, ...]
    steps: tuple[int, ...]
    buffers: tuple[PlannedBuffer, ...]
    bodies: tuple[PlannedBody, ...] = ()
    operators: tuple[str, ...] = ()
    constant_nodes: tuple[str, ...] = ()
    operands: tuple[tuple[str, ...], ...] = ()
    results: tuple[tuple[str, ...], ...] = ()
    attributes: tuple[Attributes, ...] = ()

    @property
    def tensors(self) -> tuple[PlannedBuffer, ...]:
        """The buffers that are tensors of the body: all but the workspaces."""
        return tuple(buffer for buffer in self.buffers if buffer.kind != "workspace")


@dataclass(frozen=True)
class Arena:
    """One block of memory: its size in this plan, and its capacity (None: no limit), in bytes.

    `peak` is the largest sum of its live bytes in one step.
    """

    name: str
    capacity: int | None
    size: int
    peak: int


@dataclass(frozen=True)
class Constant(WrittenRow):
    """A constant that a step reads: its bytes, its offset in the block of constants, its element type and its sizes.

    Bytes and offset are None for elements without a fixed size, such as strings.
    """

    name: str
    size: int | None
    offset: int | None = None
    dtype: str | None = None
    shape: tuple[int, ...] | None = None


@dataclass(frozen=True)
class Excluded(WrittenRow):
    """A value without an address in the arena, with the reason; its element type and its sizes, as far as they are known."""

    name: str
    reason: str
    dtype: str | None = None
    shape: tuple[int, ...] | None = None


@dataclass(frozen=True)
class Inside:
    """The `bytes` that the nodes inside a meta-op need between them, run one by one: the peak of its own plan.

    None where a shape inside is not known. `node` is the call, with the path to it; `operator` is the meta-op. With `in_arena` a workspace
    in the arena holds these bytes; otherwise they are not part of the plan.
    """

    node: str
    operator: str
    bytes: int | None
    in_arena: bool


@dataclass(frozen=True)
class PlannedState(WrittenRow):
    """An `input` and an `output` of the graph that are one state: the output of a run is the input of the next.

    `source` says how that is known: "given", by "names", or by the "operator" that makes the output. A state in the arena keeps the `size`
    bytes at `offset` of `arena` in the whole run and between runs. `copied` bytes are copied from the output to the input after each run,
    0 where both have one address. `axis` is that along which the state grows. Such a state at one address has `strides`, the bytes from one
    element to the next on each axis, at every length: those of the output at its largest size. No row moves. A state that is only listed
    has no arena, and is planned as any input and output.
    """

    input: str
    output: str
    source: str
    axis: int | None = None
    arena: str | None = None
    offset: int | None = None
    size: int | None = None
    copied: int | None = None
    strides: tuple[int, ...] | None = None

    @property
    def is_kept(self) -> bool:
        """Whether the plan keeps it in the arena."""
        return self.arena is not None


@dataclass(frozen=True, repr=False)
class PlanResult(FixedRules, WrittenRow, VerbResult):
    """The addresses of all tensors of a model in a run. Sizes and offsets are in bytes, steps count from 0.

    `io` places inputs and outputs inside or outside the arena (see layout.scope); `overwrite_inputs` says whether inputs inside it may be
    overwritten. `order` is the name of the order, `schedule` has the names of the nodes in it, `steps` the step of each. `peak` is the
    largest sum of live bytes in one step, each buffer and part rounded outwards to the alignment, `peak_step` the first such step. No
    plan of this schedule and these aliases is smaller than `lower_bound`; `optimal` says that this plan is as small. `bound` is the
    kind of proof of the bound (see offsets.problem.Bound), `ended` the reason why the search ended (see offsets.problem.Ended). No plan
    of any order and any aliases is smaller than `any_order_bound` (None without a graph). `optimal_over` is "any order" if an optimal
    plan is as small as that, else "order"; None for a plan that is not optimal. `activation_bytes` is the sum of all tensors, each with
    bytes of its own. `bodies` are the plans of the bodies of If, Loop, Scan and functions, `bounds` the upper bounds of data-dependent
    dimensions. `in_place` is the number of tensors written over an operand. `insides` are the meta-ops whose nodes need bytes between
    them. `kernels` counts the quantised "islands" that run as kernels and the "float_tensors" inside of them, which have no address;
    None without islands.
    `model` is the name of the model's file without its ending (None for a model in memory), `inputs` are the inputs of its graph.
    `operators` has the operator of each node of `schedule`, with its domain where that is not the standard one. `operands` and `results`
    have the names of the inputs and outputs of each node, "" for one that is left out. `attributes` has the attributes of each node.
    `constant_nodes` are the nodes that depend on constants alone: they may run once, before the first inference. `outputs` are the outputs
    of the graph. `ranges` are the least and largest sizes of dimensions for which the plan holds; `dims` then has the largest, and
    `formulas` the size of each arena at all sizes. `sums` has the dimensions that are sums of others, as texts in the names of `ranges`
    ("past + 1"). `states` are the states of the model, in the arena or
    only listed. `movement` has the copies between two memories (None: each buffer has one memory).
    """

    OPTIONAL = frozenset({*FIXED, "sums", "states", "movement", "ranges", "formulas"})

    verb: ClassVar[str] = "plan"

    digest: str | None
    dims: Mapping[str, int]
    alignment: int
    planner: str
    arenas: tuple[Arena, ...]
    peak: int
    peak_step: int
    lower_bound: int
    optimal: bool
    optimal_over: str | None
    any_order_bound: int | None
    bound: str
    ended: str
    activation_bytes: int
    in_place: int
    copies: CopyCount
    io: str
    overwrite_inputs: bool
    order: str
    schedule: tuple[str, ...]
    steps: tuple[int, ...]
    buffers: tuple[PlannedBuffer, ...]
    constants: tuple[Constant, ...]
    outside: tuple[Excluded, ...]
    unplanned: tuple[Excluded, ...]
    bodies: tuple[PlannedBody, ...] = ()
    bounds: Mapping[str, int] = field(default_factory=dict)
    insides: tuple[Inside, ...] = ()
    model: str | None = None
    inputs: tuple[PlannedInput, ...] = ()
    operators: tuple[str, ...] = ()
    constant_nodes: tuple[str, ...] = ()
    kernels: Mapping[str, int] | None = None
    operands: tuple[tuple[str, ...], ...] = ()
    results: tuple[tuple[str, ...], ...] = ()
    attributes: tuple[Attributes, ...] = ()
    outputs: tuple[PlannedOutput, ...] = ()
    ranges: SizeRanges = field(default_factory=dict)
    formulas: tuple[ArenaFormula, ...] = ()
    sums: Mapping[str, str] = field(default_factory=dict)
    movement: PlannedMovement | None = None
    states: tuple[PlannedState, ...] = ()

    @property
    def kept_states(self) -> tuple[PlannedState, ...]:
        """The states that the plan keeps in the arena."""
        return tuple(state for state in self.states if state.is_kept)

    def arena_size_at(self, sizes: Mapping[str, int], *, fixed: bool = False) -> int:
        """Return the bytes of all arenas at `sizes` of the dimensions that have a range.

        With `fixed`, the offsets of the plan are used, otherwise scaled offsets where there are some. Raises UsageError for a size that is
        missing or out of its range.
        """
        require_sizes(self.ranges, sizes)
        if not self.formulas:
            return self.arena_size
        return sum((arena.fixed if fixed else arena.least).at(sizes) for arena in self.formulas)

    @property
    def totals(self) -> dict[str, int]:
        """The bytes of all arenas together, and of the constants as stored."""
        return {"arenas": self.arena_size, "constants": self.constant_bytes}

    @property
    def constant_bytes(self) -> int:
        """The bytes of the constants that steps read, as stored: what lies in flash or beside the arenas."""
        return sum(constant.size or 0 for constant in self.constants)

    @property
    def tensors(self) -> tuple[PlannedBuffer, ...]:
        """The buffers that are tensors of the main graph: all but the workspaces."""
        return tuple(buffer for buffer in self.buffers if buffer.kind != "workspace")

    @property
    def arena_size(self) -> int:
        """The bytes of all arenas together."""
        return sum(arena.size for arena in self.arenas)

    @property
    def gap(self) -> int:
        """The bytes of all arenas above the lower bound; 0 where the plan is optimal."""
        return self.arena_size - self.lower_bound

    @property
    def summary(self) -> str:
        """The size of the arena, how far that is from the least, and how many buffers it holds."""
        over = {"any order": "smallest of any order", "order": "smallest of this order"}
        state = over[self.optimal_over] if self.optimal_over else f"lower bound {self.lower_bound:,} bytes"
        return f"arena {self.arena_size:,} bytes, {state}, {len(self.buffers):,} buffers"

    def to_dict(self) -> dict[str, Any]:
        """Return the plan as docs/plan.schema.json describes it, ready for JSON."""
        return {"version": VERSION, **super().to_dict(), "gap": self.gap, "totals": self.totals}
