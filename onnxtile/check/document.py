"""The claims of a published plan, as plain data, and how they are read from JSON or from the metadata of a planned model.

A missing claim is not checked. A file may leave a field out, but not write nothing in its place: an empty text, or null where the schema
has none.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Annotated, Any, ClassVar, Literal, TypeAlias, TypeVar

import onnx_ir as ir
import pydantic

from onnxtile.check.graph import entered_bodies, names_of
from onnxtile.declare.plan_document import (
    FIXED,
    SHOWN_ORDERS,
    CopyCount,
    FixedRules,
    MemoryCopy,
    PlannedPart,
    TransferTime,
    document_of,
)
from onnxtile.model import keys
from onnxtile.planning.result import PlanResult
from onnxtile.system.errors import UsageError

UNSAID = -(2**63)
"""The value of a missing number, outside the range of numbers in a file."""
NO_SHAPE = (UNSAID,)
"""The value of a missing shape."""

WORKSPACE = "workspace"
SHARED = "(workspace)"
"""The name of the one workspace of several kernels."""
UNIQUE = "(unique workspace)"
"""The end of the name of a workspace that its node has for the whole run."""

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


class Strict:
    """Claims of a file, in which fields that are no claims are errors."""

    __pydantic_config__: ClassVar[pydantic.ConfigDict] = pydantic.ConfigDict(extra="forbid")


AttributeClaims: TypeAlias = Mapping[str, int | float | str | tuple[int | float | str, ...]]
"""The attributes of a node, by name."""


@dataclass(frozen=True)
class ClaimedPart(PlannedPart, Strict):
    """The part of a buffer."""


@dataclass(frozen=True)
class ClaimedRow(Strict):
    """A buffer of the plan: see planning.result.PlannedBuffer. Texts that are left out are empty.

    A row with steps and without parts says that all its bytes are live in these steps, one without `strides` (bytes) that its elements are
    contiguous; NO_SHAPE says nothing of them. Formulas are texts. `most` are the bytes of a row of ranges at their largest sizes.
    """

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
class BodyClaim(Strict):
    """The plan of a body: see planning.result.PlannedBody."""

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


@dataclass(frozen=True)
class InputClaim(Strict):
    """An input or output of the model: see planning.result.PlannedInput."""

    name: str
    dtype: str | None
    shape: tuple[int, ...] | None
    shape_formula: Told[tuple[FilledText, ...]] = None


@dataclass(frozen=True)
class ArenaClaim(Strict):
    """An arena: see planning.result.Arena."""

    name: str
    size: int
    capacity: int | None = None
    peak: int = UNSAID


@dataclass(frozen=True)
class ConstantClaim(Strict):
    """A constant in its region: see planning.result.Constant."""

    name: str
    size: int | None
    offset: int | None = None
    dtype: FilledText | None = ""
    shape: tuple[int, ...] | None = NO_SHAPE


@dataclass(frozen=True)
class Reason(Strict):
    """A value without an address in an arena, and why; its element type and shape."""

    name: str
    reason: str
    dtype: FilledText | None = ""
    shape: tuple[int, ...] | None = NO_SHAPE


@dataclass(frozen=True)
class StateClaim(Strict):
    """An input and an output that are one state, kept in an arena: see planning.result.PlannedState."""

    input: str
    output: str
    arena: str
    offset: int
    size: int = UNSAID
    copied: int = UNSAID
    strides: tuple[int, ...] | None = None
    axis: int | None = UNSAID


@dataclass(frozen=True)
class CopyClaim(CopyCount, Strict):
    """The copies that the plan avoids, and those that remain."""


@dataclass(frozen=True)
class MemoryCopyClaim(MemoryCopy, Strict):
    """A copy between memories."""

    target_free: int = UNSAID
    source_ready: int = UNSAID
    source_until: int | None = UNSAID


@dataclass(frozen=True)
class TransferTimeClaim(TransferTime, Strict):
    """The times of a movement in seconds."""


@dataclass(frozen=True)
class MovementClaim(Strict):
    """The copies between two memories: see planning.result.PlannedMovement. `copies` that are left out are None."""

    fast: str
    slow: str
    copies: Told[tuple[MemoryCopyClaim, ...]] = None
    bytes: int = UNSAID
    forced: int = UNSAID
    weights: Told[bool] = None
    time: TransferTimeClaim | None = None


@dataclass(frozen=True)
class KernelClaim(Strict):
    """The quantised islands that run as kernels, and the float tensors inside of them."""

    islands: int
    float_tensors: int


@dataclass(frozen=True)
class TotalsClaim(Strict):
    """The bytes of all arenas, and of all constants."""

    arenas: int
    constants: int


@dataclass(frozen=True)
class PiecesClaim(Strict):
    """A size in bytes as a formula of the dimensions, which is the largest of `pieces`."""

    bytes: FilledText
    pieces: tuple[FilledText, ...]


@dataclass(frozen=True)
class FormulaClaim(Strict):
    """The bytes of an arena at all sizes: see planning.result.ArenaFormula."""

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
class Claims(FixedRules, Strict):
    """A published plan: see planning.result.PlanResult. Lists that are left out are None."""

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
        """Return the claims of `plan`, as in its JSON, and what a search proved."""
        moved = plan.movement
        bounds = () if moved is None else (moved.lower_bound, moved.parts_bound, moved.any_order_bound)
        search = SearchClaim(plan.optimal_over, plan.any_order_bound, bounds)
        return replace(_adapter().validate_python(document_of(plan.to_dict())), search=search)


# A published plan read back: from its JSON, or from the metadata of a planned model.

_HINT = "onnxtile plan MODEL --emit plan.json writes a plan; docs/plan.schema.json describes it"

_LARGEST = 2**53
"""The largest number that every reader of JSON keeps exact."""


def from_json(data: bytes, where: str) -> Claims:
    """Return the plan in the JSON text `data` of the file `where`. Raises UsageError with the first invalid field."""
    try:
        found = json.loads(data, parse_int=_number)
        version = found.get("version") if isinstance(found, dict) else None
        if version != 1 or isinstance(version, bool):  # in Python true equals 1
            raise UsageError(f"{where} is not a plan: version is not 1", hint=_HINT)
        surplus = _without_surplus(found, data)
        plan = _adapter().validate_json(json.dumps(found) if surplus else data, strict=True)
        return replace(plan, surplus=surplus)
    except pydantic.ValidationError as error:
        first = error.errors()[0]
        field = ".".join(map(str, first["loc"]))
        raise UsageError(f"{where} is not a plan: {field + ': ' if field else ''}{first['msg']}", hint=_HINT) from None
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{where} is not JSON: {error}", hint=_HINT) from None


def _without_surplus(found: Any, data: bytes) -> tuple[str, ...]:
    """Remove from the plan `found`, the JSON in `data`, the fields that are no claims; return their names."""
    try:
        _adapter().validate_json(data, strict=True)
    except pydantic.ValidationError as error:
        faults = [fault["loc"] for fault in error.errors() if fault["type"] == "unexpected_keyword_argument"]
    else:
        return ()
    for place in faults:
        inner = found
        for key in place[:-1]:
            inner = inner[key]
        del inner[place[-1]]
    return tuple(".".join(map(str, place)) for place in faults)


@cache
def _adapter() -> pydantic.TypeAdapter[Claims]:
    return pydantic.TypeAdapter(Claims)


def _number(text: str) -> int:
    number = int(text) if len(text) < 20 else _LARGEST + 1
    if abs(number) > _LARGEST:
        raise ValueError(f"a number is larger than {_LARGEST}")
    return number


def from_marks(model: ir.Model, where: str) -> Claims:
    """Return the plan in the metadata of `model`, of the file `where`.

    It has addresses, aliases, steps and arenas; other claims are missing. Raises UsageError for a model without a plan.
    """
    text = model.graph.metadata_props.get(keys.PLAN)
    if text is None:
        raise UsageError(f"{where} is not a planned model: its graph has no {keys.PLAN!r}", hint=_HINT)
    try:
        summary = dict(json.loads(text, parse_int=_number))
        main = _marked(model, model.graph, "", None)
        rows = (*main.buffers, *(_workspace_row(SHARED, workspace) for workspace in summary.get("workspaces", ())))
        whole = {
            **{name: summary[name] for name in ("alignment", "arenas", "io", "overwrite_inputs")},
            "order": summary["order"] if summary["order"] in SHOWN_ORDERS else "schedule",
            **{"schedule": main.schedule, "steps": main.steps, "buffers": rows, "bodies": main.bodies},
            "peak": summary["peak"],
            **{name: summary[name] for name in (*FIXED, "movement") if name in summary},
            "states": summary.get("states", ()),
            "kernels": summary.get("kernels"),
        }
        return _adapter().validate_python(whole)
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise UsageError(f"{where} is not a planned model: its metadata is not a plan ({_short(error)})") from None


def _short(error: Exception) -> str:
    if isinstance(error, pydantic.ValidationError):
        first = error.errors()[0]
        return f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
    return str(error)


def _marked(model: ir.Model, graph: ir.Graph, name: str, attribute: str | None) -> BodyClaim:
    """Return the claims in the metadata of `graph` and of its bodies."""
    rows = [row for value in graph.inputs if (row := _row_of_marks(value)) is not None]
    rows += [row for node in graph for value in node.outputs if (row := _row_of_marks(value)) is not None]
    order = sorted(graph, key=lambda node: int(node.metadata_props[keys.STEP]))
    bodies, names = [], names_of(graph)
    for node in order:
        if keys.WORKSPACE_AT in node.metadata_props:
            workspace = json.loads(node.metadata_props[keys.WORKSPACE_AT], parse_int=_number)
            rows.append(_workspace_row(f"{names[node]} {SHARED}", workspace))
        if keys.UNIQUE_WORKSPACE_AT in node.metadata_props:
            workspace = json.loads(node.metadata_props[keys.UNIQUE_WORKSPACE_AT], parse_int=_number)
            rows.append(_workspace_row(f"{names[node]} {UNIQUE}", workspace))
        bodies += [
            _marked(model, body, names[node], at) for at, body in entered_bodies(node, model).items() if at is not None
        ]
    steps = tuple(int(node.metadata_props[keys.STEP]) for node in order)
    return BodyClaim(name, attribute, tuple(names[node] for node in order), steps, tuple(rows), tuple(bodies))


def _row_of_marks(value: ir.Value) -> ClaimedRow | None:
    marks = value.metadata_props
    if keys.ARENA not in marks:
        return None
    place = (marks[keys.ARENA], int(marks[keys.OFFSET]), int(marks[keys.SIZE]))
    parts = tuple(ClaimedPart(**part) for part in json.loads(marks.get(keys.PARTS, "[]"), parse_int=_number))
    return ClaimedRow(value.name or "", *place, alias=marks.get(keys.ALIAS_OF), parts=parts, strides=NO_SHAPE)


def _workspace_row(name: str, workspace: dict[str, Any]) -> ClaimedRow:
    live_range = {key: workspace[key] for key in ("first", "last") if key in workspace}
    return ClaimedRow(name, workspace["arena"], workspace["offset"], workspace["size"], kind=WORKSPACE, **live_range)
