"""The claims of a published plan, as plain data; a missing claim is not checked.

A file may leave a field out, but not write nothing in its place: an empty text, or null where the schema has none.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Literal, TypeAlias, TypeVar

import pydantic

from onnxtile.model.formula import SizePieces
from onnxtile.planning.result import (
    ArenaFormula,
    PlannedBody,
    PlannedBuffer,
    PlannedInput,
    PlannedMovement,
    PlannedState,
    PlanResult,
)

UNSAID = -(2**63)
"""The value of a missing number, outside the range of numbers in a file."""
NO_SHAPE = (UNSAID,)
"""The value of a missing shape."""

_Claimed = TypeVar("_Claimed")


def _said(value: Any) -> Any:
    if value is None:
        raise ValueError("the field cannot be null")
    return value


def _unpublished(_: Any) -> Any:
    raise ValueError("a plan has no such field")


Told: TypeAlias = Annotated[_Claimed | None, pydantic.AfterValidator(_said)]
"""A claim that is None where it is left out, and that no file may write as null."""
FilledText: TypeAlias = Annotated[str, pydantic.Field(min_length=1)]
"""A text that is empty where it is left out, and in no file."""
STRICT = pydantic.ConfigDict(extra="forbid")
"""Fields of a file that are no claims are errors."""

AttributeClaims: TypeAlias = Mapping[str, int | float | str | tuple[int | float | str, ...]]
"""The attributes of a node, by name."""


@dataclass(frozen=True)
class ClaimedPart:
    """The part of a buffer: see planning.result.PlannedPart."""

    __pydantic_config__: ClassVar[pydantic.ConfigDict] = STRICT

    start: int
    size: int
    first: int
    last: int


@dataclass(frozen=True)
class ClaimedRow:
    """A buffer of the plan: see planning.result.PlannedBuffer. Texts that are left out are empty.

    A row with steps and without parts says that all its bytes are live in these steps, one without `strides` (bytes) that its elements are
    contiguous; NO_SHAPE says nothing of them. Formulas are texts. `most` are the bytes of a row of ranges at their largest sizes.
    """

    __pydantic_config__: ClassVar[pydantic.ConfigDict] = STRICT

    name: str
    arena: str
    offset: int
    size: int
    first: int = UNSAID
    last: int = UNSAID
    kind: FilledText = ""
    alias: FilledText | None = None
    node: FilledText | None = ""
    dtype: FilledText | None = ""
    shape: tuple[int, ...] | None = NO_SHAPE
    parts: Told[tuple[ClaimedPart, ...]] = None
    strides: Told[tuple[int, ...]] = None
    size_formula: FilledText = ""
    shape_formula: Told[tuple[FilledText, ...]] = None
    strides_formula: Told[tuple[FilledText, ...]] = None
    scaled_offset: FilledText = ""
    most: Annotated[int, pydantic.AfterValidator(_unpublished)] = UNSAID

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

    __pydantic_config__: ClassVar[pydantic.ConfigDict] = STRICT

    node: str
    attribute: str | None
    schedule: tuple[str, ...]
    steps: tuple[int, ...]
    buffers: tuple[ClaimedRow, ...]
    bodies: tuple[BodyClaim, ...] = ()
    size: int = UNSAID
    operators: Told[tuple[str, ...]] = None
    constant_nodes: Told[tuple[str, ...]] = None
    operands: Told[tuple[tuple[str, ...], ...]] = None
    results: Told[tuple[tuple[str, ...], ...]] = None
    attributes: Told[tuple[AttributeClaims, ...]] = None

    @classmethod
    def of(cls, body: PlannedBody) -> BodyClaim:
        """Return the claims of `body`."""
        rows, inner = _rows(body.buffers), tuple(map(cls.of, body.bodies))
        nodes = (body.operators, body.constant_nodes, body.operands, body.results, body.attributes)
        return cls(body.node, body.attribute, body.schedule, body.steps, rows, inner, body.size, *nodes)


@dataclass(frozen=True)
class InputClaim:
    """An input or output of the model: see planning.result.PlannedInput."""

    __pydantic_config__: ClassVar[pydantic.ConfigDict] = STRICT

    name: str
    dtype: str | None
    shape: tuple[int, ...] | None
    shape_formula: Told[tuple[FilledText, ...]] = None


@dataclass(frozen=True)
class ArenaClaim:
    """An arena: see planning.result.Arena."""

    __pydantic_config__: ClassVar[pydantic.ConfigDict] = STRICT

    name: str
    size: int
    capacity: int | None = None
    peak: int = UNSAID


@dataclass(frozen=True)
class ConstantClaim:
    """A constant in its region: see planning.result.Constant."""

    __pydantic_config__: ClassVar[pydantic.ConfigDict] = STRICT

    name: str
    size: int | None
    offset: int | None = None
    dtype: FilledText | None = ""
    shape: tuple[int, ...] | None = NO_SHAPE


@dataclass(frozen=True)
class Reason:
    """A value without an address in an arena, and why; its element type and shape."""

    __pydantic_config__: ClassVar[pydantic.ConfigDict] = STRICT

    name: str
    reason: str
    dtype: FilledText | None = ""
    shape: tuple[int, ...] | None = NO_SHAPE


@dataclass(frozen=True)
class StateClaim:
    """An input and an output that are one state, kept in an arena: see planning.result.PlannedState."""

    __pydantic_config__: ClassVar[pydantic.ConfigDict] = STRICT

    input: str
    output: str
    arena: str
    offset: int
    size: int = UNSAID
    copied: int = UNSAID
    strides: tuple[int, ...] | None = None
    axis: int | None = UNSAID


@dataclass(frozen=True)
class CopyClaim:
    """The copies that the plan avoids, and those that remain: see planning.result.CopyCount."""

    __pydantic_config__: ClassVar[pydantic.ConfigDict] = STRICT

    avoided: int
    avoided_bytes: int
    remaining: int
    remaining_bytes: int


@dataclass(frozen=True)
class MemoryCopyClaim:
    """A copy between memories: see planning.movement.copies.MemoryCopy."""

    __pydantic_config__: ClassVar[pydantic.ConfigDict] = STRICT

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

    __pydantic_config__: ClassVar[pydantic.ConfigDict] = STRICT

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

    __pydantic_config__: ClassVar[pydantic.ConfigDict] = STRICT

    fast: str
    slow: str
    copies: Told[tuple[MemoryCopyClaim, ...]] = None
    bytes: int = UNSAID
    forced: int = UNSAID
    weights: Told[bool] = None
    time: TransferTimeClaim | None = None


@dataclass(frozen=True)
class KernelClaim:
    """The quantised islands that run as kernels, and the float tensors inside of them."""

    __pydantic_config__: ClassVar[pydantic.ConfigDict] = STRICT

    islands: int
    float_tensors: int


@dataclass(frozen=True)
class TotalsClaim:
    """The bytes of all arenas, and of all constants."""

    __pydantic_config__: ClassVar[pydantic.ConfigDict] = STRICT

    arenas: int
    constants: int


@dataclass(frozen=True)
class PiecesClaim:
    """A size in bytes as a formula of the dimensions, which is the largest of `pieces`."""

    __pydantic_config__: ClassVar[pydantic.ConfigDict] = STRICT

    bytes: FilledText
    pieces: tuple[FilledText, ...]


@dataclass(frozen=True)
class FormulaClaim:
    """The bytes of an arena at all sizes: see planning.arena_formula.ArenaFormula."""

    __pydantic_config__: ClassVar[pydantic.ConfigDict] = STRICT

    name: str
    fixed: PiecesClaim
    scaled: PiecesClaim | None = None
    peak: PiecesClaim | None = None


@dataclass(frozen=True)
class SearchClaim:
    """What a search proved of a plan that was just made. `moved` are bounds of the copied bytes, each of more plans than the last."""

    optimal_over: str | None
    any_order_bound: int | None
    moved: tuple[int, ...] = ()


@dataclass(frozen=True)
class Claims:
    """A published plan: see planning.result.PlanResult. Lists that are left out are None."""

    __pydantic_config__: ClassVar[pydantic.ConfigDict] = STRICT

    alignment: int
    arenas: tuple[ArenaClaim, ...]
    schedule: tuple[str, ...]
    steps: tuple[int, ...]
    buffers: tuple[ClaimedRow, ...]
    io: Literal["outputs", "inside", "outside"]
    overwrite_inputs: bool = False
    order: Literal["any", "model", "schedule", ""] = ""
    bodies: tuple[BodyClaim, ...] = ()
    constants: Told[tuple[ConstantClaim, ...]] = None
    outside: Told[tuple[Reason, ...]] = None
    unplanned: Told[tuple[Reason, ...]] = None
    version: Literal[1] = 1
    digest: FilledText | None = None
    model: FilledText | None = None
    dims: Mapping[str, int] = field(default_factory=dict)
    bounds: Mapping[str, int] = field(default_factory=dict)
    peak: int = UNSAID
    peak_step: int = UNSAID
    lower_bound: int = UNSAID
    optimal: Told[bool] = None
    bound: Literal["peak", "parts", "bodies", "every order", "pin", "search", ""] = ""
    gap: Told[int] = None
    activation_bytes: int = UNSAID
    in_place: int = UNSAID
    copies: Told[CopyClaim] = None
    inputs: Told[tuple[InputClaim, ...]] = None
    operators: Told[tuple[str, ...]] = None
    constant_nodes: Told[tuple[str, ...]] = None
    operands: Told[tuple[tuple[str, ...], ...]] = None
    results: Told[tuple[tuple[str, ...], ...]] = None
    attributes: Told[tuple[AttributeClaims, ...]] = None
    outputs: Told[tuple[InputClaim, ...]] = None
    kernels: KernelClaim | None = None
    totals: Told[TotalsClaim] = None
    pins: Mapping[str, int] = field(default_factory=dict)
    places: Mapping[str, str] = field(default_factory=dict)
    keeps: tuple[str, ...] = ()
    states: tuple[StateClaim, ...] = ()
    movement: Told[MovementClaim] = None
    ranges: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    sums: Mapping[str, FilledText] = field(default_factory=dict)
    formulas: Told[tuple[FormulaClaim, ...]] = None
    search: Annotated[SearchClaim | None, pydantic.AfterValidator(_unpublished)] = None
    """What a search proved, of a plan that was just made."""
    surplus: Annotated[tuple[str, ...], pydantic.AfterValidator(_unpublished)] = ()
    """The fields of a file that are no claims."""
    is_at_sizes: Annotated[bool, pydantic.AfterValidator(_unpublished)] = False
    is_scaled: Annotated[bool, pydantic.AfterValidator(_unpublished)] = False
    """Whether it is a plan over ranges at one size of each, and whether it has scaled offsets there."""

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
            order=plan.order if plan.order in {"any", "model"} else "schedule",  # type: ignore[arg-type]
            bodies=tuple(map(BodyClaim.of, plan.bodies)),
            constants=tuple(ConstantClaim(**vars(c)) for c in plan.constants),
            outside=tuple(Reason(**vars(e)) for e in plan.outside),
            unplanned=tuple(Reason(**vars(e)) for e in plan.unplanned),
            digest=plan.digest,
            dims=plan.dims,
            bounds=plan.bounds,
            gap=plan.gap,
            model=plan.model,
            kernels=None if plan.kernels is None else KernelClaim(**plan.kernels),
            totals=TotalsClaim(**plan.totals),
            copies=CopyClaim(**vars(plan.copies)),
            inputs=tuple(map(_end, plan.inputs)),
            outputs=tuple(map(_end, plan.outputs)),
            states=tuple(map(_state, plan.kept_states)),
            operators=plan.operators,
            operands=plan.operands,
            results=plan.results,
            attributes=plan.attributes,
            constant_nodes=plan.constant_nodes,
            pins=plan.pins,
            places=plan.places,
            keeps=plan.keeps,
            movement=None if plan.movement is None else _movement(plan.movement),
            ranges=plan.ranges,
            sums=plan.sums,
            formulas=tuple(map(_formula, plan.formulas)) if plan.ranges else None,
            search=_search(plan),
            **{name: figure for name, figure in vars(plan).items() if name in _FIGURES},
        )


_FIGURES = frozenset(
    {
        "peak",
        "peak_step",
        "lower_bound",
        "optimal",
        "bound",
        "activation_bytes",
        "in_place",
    }
)


def _search(plan: PlanResult) -> SearchClaim:
    moved = plan.movement
    bounds = () if moved is None else (moved.lower_bound, moved.parts_bound, moved.any_order_bound)
    return SearchClaim(plan.optimal_over, plan.any_order_bound, bounds)


def _movement(planned: PlannedMovement) -> MovementClaim:
    copies = tuple(MemoryCopyClaim(**vars(copy)) for copy in planned.copies)
    time = None if planned.time is None else TransferTimeClaim(**vars(planned.time))
    return MovementClaim(planned.fast, planned.slow, copies, planned.bytes, planned.forced, planned.weights, time)


def _end(planned: PlannedInput) -> InputClaim:
    texts = None if planned.shape_formula is None else tuple(map(str, planned.shape_formula))
    return InputClaim(planned.name, planned.dtype, planned.shape, texts)


def _state(planned: PlannedState) -> StateClaim:
    return StateClaim(**{name: claim for name, claim in vars(planned).items() if name != "source"})


def _formula(planned: ArenaFormula) -> FormulaClaim:
    scaled, peak = (None if form is None else _pieces(form) for form in (planned.scaled, planned.peak))
    return FormulaClaim(planned.name, _pieces(planned.fixed), scaled, peak)


def _pieces(planned: SizePieces) -> PiecesClaim:
    return PiecesClaim(str(planned), tuple(map(str, planned.pieces)))


def _rows(buffers: tuple[PlannedBuffer, ...]) -> tuple[ClaimedRow, ...]:
    return tuple(map(_row, buffers))


def _row(buffer: PlannedBuffer) -> ClaimedRow:
    fields: dict[str, Any] = dict(vars(buffer))
    fields["parts"] = tuple(ClaimedPart(**vars(part)) for part in buffer.parts) or None
    for name in ("size_formula", "scaled_offset"):
        fields[name] = "" if fields[name] is None else str(fields[name])
    for name in ("shape_formula", "strides_formula"):
        fields[name] = None if fields[name] is None else tuple(map(str, fields[name]))
    return ClaimedRow(**fields)
