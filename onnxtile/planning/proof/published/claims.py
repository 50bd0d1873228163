"""The claims of a published plan, as plain data; a missing claim is not checked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from onnxtile.planning.movement.copies import PlannedMovement
from onnxtile.planning.result import PlannedBody, PlannedBuffer, PlanResult

UNSAID = -(2**63)
"""The value of a missing number, outside the range of numbers in a file."""
NO_SHAPE = (UNSAID,)
"""The value of a missing shape."""

AttributeClaims: TypeAlias = Mapping[str, int | float | str | tuple[int | float | str, ...]]
"""The attributes of a node, by name."""


@dataclass(frozen=True)
class ClaimedPart:
    """The part of a buffer: see planning.result.PlannedPart."""

    start: int
    size: int
    first: int
    last: int


@dataclass(frozen=True)
class ClaimedRow:
    """A buffer of the plan: see planning.result.PlannedBuffer. Texts that are left out are empty.

    A row with steps and without parts says that all its bytes are live in these steps.
    """

    name: str
    arena: str
    offset: int
    size: int
    first: int = UNSAID
    last: int = UNSAID
    kind: str = ""
    alias: str | None = None
    node: str | None = ""
    dtype: str | None = ""
    shape: tuple[int, ...] | None = NO_SHAPE
    parts: tuple[ClaimedPart, ...] | None = None

    @property
    def end(self) -> int:
        """The offset behind its last byte."""
        return self.offset + self.size

    @property
    def place(self) -> str:
        """Its name and bytes, for messages."""
        return f"{self.name!r} in [{self.offset}, {self.end})"


@dataclass(frozen=True)
class BodyClaim:
    """The plan of a body: see planning.result.PlannedBody."""

    node: str
    attribute: str | None
    schedule: tuple[str, ...]
    steps: tuple[int, ...]
    buffers: tuple[ClaimedRow, ...]
    bodies: tuple[BodyClaim, ...] = ()
    size: int = UNSAID
    operators: tuple[str, ...] | None = None
    constant_nodes: tuple[str, ...] | None = None
    operands: tuple[tuple[str, ...], ...] | None = None
    results: tuple[tuple[str, ...], ...] | None = None
    attributes: tuple[AttributeClaims, ...] | None = None

    @classmethod
    def of(cls, body: PlannedBody) -> BodyClaim:
        """Return the claims of `body`."""
        rows, inner = _rows(body.buffers), tuple(map(cls.of, body.bodies))
        nodes = (body.operators, body.constant_nodes, body.operands, body.results, body.attributes)
        return cls(body.node, body.attribute, body.schedule, body.steps, rows, inner, body.size, *nodes)


@dataclass(frozen=True)
class InputClaim:
    """An input or output of the model: see planning.result.PlannedInput."""

    name: str
    dtype: str | None
    shape: tuple[int, ...] | None


@dataclass(frozen=True)
class ArenaClaim:
    """An arena: see planning.result.Arena."""

    name: str
    size: int
    capacity: int | None = None
    peak: int = UNSAID


@dataclass(frozen=True)
class ConstantClaim:
    """A constant in its region: see planning.result.Constant."""

    name: str
    size: int | None
    offset: int | None = None
    dtype: str | None = ""
    shape: tuple[int, ...] | None = NO_SHAPE


@dataclass(frozen=True)
class Reason:
    """A value without an address in an arena, and why; its element type and shape."""

    name: str
    reason: str
    dtype: str | None = ""
    shape: tuple[int, ...] | None = NO_SHAPE


@dataclass(frozen=True)
class StateClaim:
    """An input and an output that are one state: see planning.result.PlannedState. Without an arena it is only listed."""

    input: str
    output: str
    arena: str | None = None
    offset: int | None = None
    size: int | None = UNSAID
    copied: int | None = UNSAID
    strides: tuple[int, ...] | None = None
    axis: int | None = UNSAID
    source: str = ""

    @property
    def is_kept(self) -> bool:
        """Whether the plan keeps it in an arena."""
        return self.arena is not None


@dataclass(frozen=True)
class CopyClaim:
    """The copies that the plan avoids, and those that remain: see planning.result.CopyCount."""

    avoided: int
    avoided_bytes: int
    remaining: int
    remaining_bytes: int


@dataclass(frozen=True)
class MemoryCopyClaim:
    """A copy between memories: see planning.movement.copies.MemoryCopy."""

    node: str
    tensor: str
    source: str
    source_memory: str
    source_offset: int | None
    result: str
    memory: str
    offset: int | None
    bytes: int
    step: int
    before: int | None
    target_free: int = UNSAID
    source_ready: int = UNSAID
    source_until: int | None = UNSAID


@dataclass(frozen=True)
class TransferTimeClaim:
    """The times of a movement in seconds: see planning.movement.copies.TransferTime."""

    bandwidth: int
    copying: float
    macs_per_second: int | None = None
    computing: float | None = None
    without_overlap: float | None = None
    with_overlap: float | None = None
    starts: tuple[float, ...] | None = None
    ends: tuple[float, ...] | None = None


@dataclass(frozen=True)
class MovementClaim:
    """The copies between two memories: see planning.movement.copies.PlannedMovement. `copies` that are left out are None."""

    fast: str
    slow: str
    copies: tuple[MemoryCopyClaim, ...] | None = None
    bytes: int = UNSAID
    forced: int = UNSAID
    lower_bound: int = UNSAID
    parts_bound: int = UNSAID
    any_order_bound: int = UNSAID
    time: TransferTimeClaim | None = None


@dataclass(frozen=True)
class Claims:
    """A published plan: see planning.result.PlanResult. Lists that are left out are None."""

    alignment: int
    arenas: tuple[ArenaClaim, ...]
    schedule: tuple[str, ...]
    steps: tuple[int, ...]
    buffers: tuple[ClaimedRow, ...]
    io: Literal["outputs", "inside", "outside"]
    overwrite_inputs: bool = False
    order: str = ""
    bodies: tuple[BodyClaim, ...] = ()
    constants: tuple[ConstantClaim, ...] | None = None
    outside: tuple[Reason, ...] | None = None
    unplanned: tuple[Reason, ...] | None = None
    version: Literal[1] = 1
    digest: str | None = None
    dims: Mapping[str, int] = field(default_factory=dict)
    bounds: Mapping[str, int] = field(default_factory=dict)
    peak: int = UNSAID
    peak_step: int = UNSAID
    lower_bound: int = UNSAID
    optimal: bool | None = None
    optimal_over: str | None = ""
    any_order_bound: int | None = UNSAID
    bound: str = ""
    gap: int | None = None
    activation_bytes: int = UNSAID
    in_place: int = UNSAID
    copies: CopyClaim | None = None
    inputs: tuple[InputClaim, ...] | None = None
    operators: tuple[str, ...] | None = None
    constant_nodes: tuple[str, ...] | None = None
    operands: tuple[tuple[str, ...], ...] | None = None
    results: tuple[tuple[str, ...], ...] | None = None
    attributes: tuple[AttributeClaims, ...] | None = None
    outputs: tuple[InputClaim, ...] | None = None
    kernels: Mapping[str, int] | None = None
    totals: Mapping[str, int] | None = None
    pins: Mapping[str, int] = field(default_factory=dict)
    places: Mapping[str, str] = field(default_factory=dict)
    keeps: tuple[str, ...] = ()
    states: tuple[StateClaim, ...] = ()
    movement: MovementClaim | None = None

    @classmethod
    def of(cls, plan: PlanResult) -> Claims:
        """Return the claims of `plan`."""
        return cls(
            alignment=plan.alignment,
            arenas=tuple(ArenaClaim(a.name, a.size, a.capacity, a.peak) for a in plan.arenas),
            schedule=plan.schedule,
            steps=plan.steps,
            buffers=_rows(plan.buffers),
            io=plan.io,  # type: ignore[arg-type]  # the check reads it as a text
            overwrite_inputs=plan.overwrite_inputs,
            order=plan.order,
            bodies=tuple(map(BodyClaim.of, plan.bodies)),
            constants=tuple(ConstantClaim(**vars(c)) for c in plan.constants),
            outside=tuple(Reason(**vars(e)) for e in plan.outside),
            unplanned=tuple(Reason(**vars(e)) for e in plan.unplanned),
            digest=plan.digest,
            dims=plan.dims,
            bounds=plan.bounds,
            gap=plan.gap,
            kernels=plan.kernels,
            totals=plan.totals,
            copies=CopyClaim(**vars(plan.copies)),
            inputs=tuple(InputClaim(**vars(one)) for one in plan.inputs),
            outputs=tuple(InputClaim(**vars(one)) for one in plan.outputs),
            states=tuple(StateClaim(**vars(one)) for one in plan.states),
            operators=plan.operators,
            operands=plan.operands,
            results=plan.results,
            attributes=plan.attributes,
            constant_nodes=plan.constant_nodes,
            pins=plan.pins,
            places=plan.places,
            keeps=plan.keeps,
            movement=None if plan.movement is None else _movement(plan.movement),
            **{name: figure for name, figure in vars(plan).items() if name in _FIGURES},
        )


_FIGURES = frozenset(
    {
        "peak",
        "peak_step",
        "lower_bound",
        "optimal",
        "optimal_over",
        "any_order_bound",
        "bound",
        "activation_bytes",
        "in_place",
    }
)


_FORMULAS = frozenset({"parts", "size_formula", "shape_formula", "scaled_offset"})
"""Fields of a row that are claimed otherwise, or at each size of a range by itself."""


def _movement(planned: PlannedMovement) -> MovementClaim:
    copies = tuple(MemoryCopyClaim(**vars(copy)) for copy in planned.copies)
    bounds = (planned.lower_bound, planned.parts_bound, planned.any_order_bound)
    time = None if planned.time is None else TransferTimeClaim(**vars(planned.time))
    return MovementClaim(planned.fast, planned.slow, copies, planned.bytes, planned.forced, *bounds, time)


def _rows(buffers: tuple[PlannedBuffer, ...]) -> tuple[ClaimedRow, ...]:
    return tuple(map(_row, buffers))


def _row(buffer: PlannedBuffer) -> ClaimedRow:
    fields: dict[str, Any] = {name: claim for name, claim in vars(buffer).items() if name not in _FORMULAS}
    return ClaimedRow(**fields, parts=tuple(ClaimedPart(**vars(part)) for part in buffer.parts) or None)
