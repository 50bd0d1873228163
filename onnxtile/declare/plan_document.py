"""The document of a plan: one type for a plan that was just made, for one that is read back, and for what files and metadata say.

Nothing here computes a plan or judges one. A plan that was made says all; a file may leave out what is optional here, and then nothing
checks it. A number that is left out is UNSAID, a text empty, a shape NO_SHAPE, a list None. A file cannot write nothing in the place of a
field: an empty text, or null where docs/plan.schema.json has none.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, field, fields
from functools import cache
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, TypeAlias, TypeVar

import pydantic

from onnxtile.declare.layout_rules import FIXED, FixedRules
from onnxtile.declare.verb import PLAIN, JsonFields, ready
from onnxtile.system.dataclass import dataclass
from onnxtile.system.errors import UsageError

VERSION = 1
"""The version of the JSON of a plan; docs/plan.schema.json describes it."""

SHOWN_ORDERS = frozenset({"any", "model"})
"""Orders that the rows of a plan show: offsets hold in every order of the nodes, or nodes run as in the file."""

UNSAID = -(2**63)
"""The value of a missing number, outside the range of numbers in a file."""
NO_SHAPE = (UNSAID,)
"""The value of a missing shape."""

WORKSPACE = "workspace"
"""The kind of a row that is no tensor."""
SHARED = "(workspace)"
"""The name of the one workspace of several kernels, and the end of the name of that of one node."""
UNIQUE = "(unique workspace)"
"""The end of the name of a workspace that its node has for the whole run."""

_Said = TypeVar("_Said")


class _NotNull:
    """What pydantic asks of a type's annotation, written so that it is not loaded before a plan is read."""

    def __get_pydantic_core_schema__(self, source: Any, handler: pydantic.GetCoreSchemaHandler) -> Any:
        from pydantic_core.core_schema import no_info_after_validator_function

        return no_info_after_validator_function(self._require, handler(source))

    @staticmethod
    def _require(value: Any) -> Any:
        if value is None:
            raise ValueError("the field cannot be null")
        return value


class _NotEmpty:
    """Says to pydantic that a text is not empty."""

    def __get_pydantic_core_schema__(self, source: Any, handler: pydantic.GetCoreSchemaHandler) -> Any:
        return {**handler(source), "min_length": 1}


Stated: TypeAlias = Annotated[_Said | None, _NotNull()]
"""A field that is None where it is left out, and that no file may write as null."""
FilledText: TypeAlias = Annotated[str, _NotEmpty()]
"""A text that is empty where it is left out, and in no file."""

AttributeValue: TypeAlias = int | float | str | tuple[int | float | str, ...]
"""The value of an attribute; a float that is not finite is one of the texts "inf", "-inf" and "nan"."""
Attributes: TypeAlias = Mapping[str, AttributeValue]
"""The attributes of a node that are numbers, texts, or lists of these, by name."""


@dataclass(frozen=True, repr=False)
class PlanRow:
    """A row of a plan. Of its fields, those in OPTIONAL are left out of the JSON where they have their default; a file has no others."""

    __slots__ = ()
    OPTIONAL: ClassVar[frozenset[str]] = frozenset()
    __pydantic_config__: ClassVar[pydantic.ConfigDict] = {"extra": "forbid"}

    def to_dict(self) -> dict[str, Any]:
        """Return the row as docs/plan.schema.json describes it, ready for JSON."""
        kind: Any = type(self)
        defaults = _defaults(kind)
        return {
            name: value if type(value) in PLAIN else ready(value)
            for name, value in self._columns()
            if name not in defaults or value != defaults[name]
        }

    def _columns(self) -> Iterable[tuple[str, Any]]:
        """Return the fields with their values."""
        return vars(self).items()


@cache
def columns(row: type[Any]) -> tuple[str, ...]:
    """Return the names of the fields of a row."""
    return tuple(column.name for column in fields(row))


@cache
def _defaults(row: type[Any]) -> Mapping[str, Any]:
    """Return the default of each optional field."""
    optional = (column for column in fields(row) if column.name in row.OPTIONAL)
    return {
        column.name: column.default if column.default_factory is MISSING else column.default_factory()
        for column in optional
    }


# Tensors and memory.


@dataclass(frozen=True)
class PlannedPart(PlanRow):
    """The `size` bytes of a buffer from its byte `start` on are live from step `first` to step `last` inclusive."""

    start: int
    size: int
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class PlannedBuffer(PlanRow):
    """A tensor at an address: `size` bytes from `offset` of the arena `arena`, live from step `first` to step `last` inclusive.

    `kind` is "output" or "input" for tensors that the caller reads or writes, "workspace" for bytes that a node needs beside its operands
    and results, else "activation". `alias` names the tensor that owns the bytes, if it is another; the live range of an owner covers all
    tensors in its bytes. `node` is the node that makes it, by its name in the schedule; `shape` has its sizes, `dtype` its element type in
    onnx's spelling ("FLOAT"). `parts` of an owner are its live bytes, where some live for fewer steps than the whole; without parts, all
    bytes are live from `first` to `last`. In a plan over ranges of dimensions, `offset`, `size` and `shape` are those of the largest sizes.
    There, `size_formula` and `shape_formula` have those of all sizes, and `scaled_offset` the offset in an arena that scales with them.
    `strides` of a tensor that is not contiguous are the bytes from one element to the next on each axis, `strides_formula` those at all
    sizes; None for a contiguous tensor. Formulas are expressions of Python. `name` is the tensor.
    """

    OPTIONAL = frozenset({"parts", "strides", "size_formula", "shape_formula", "strides_formula", "scaled_offset"})

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
    strides: Stated[tuple[int, ...]] = None
    size_formula: FilledText = ""
    shape_formula: Stated[tuple[FilledText, ...]] = None
    strides_formula: Stated[tuple[FilledText, ...]] = None
    scaled_offset: FilledText = ""
    parts: Stated[tuple[PlannedPart, ...]] = None

    def _columns(self) -> Iterable[tuple[str, Any]]:
        return ((name, getattr(self, name)) for name in columns(PlannedBuffer))

    @property
    def end(self) -> int:
        """The offset one past its last byte."""
        return self.offset + self.size

    @property
    def place(self) -> str:
        """Its name and bytes, for messages."""
        return f"{self.name!r} in [{self.offset}, {self.end})"


@dataclass(frozen=True)
class Arena(PlanRow):
    """One block of memory: its size in this plan, and its capacity (None: no limit), in bytes.

    `peak` is the largest sum of its live bytes in one step. `name` is that of the memory, `size` its bytes in this plan, and `capacity` its
    bytes at most (None: no limit).
    """

    name: str
    capacity: int | None = field(default=None, kw_only=True)
    size: int
    peak: int = UNSAID


@dataclass(frozen=True)
class Constant(PlanRow):
    """A constant that a step reads: its bytes, its offset in the block of constants, its element type and its sizes.

    Bytes and offset are None for elements without a fixed size, such as strings. `name` is the tensor, `size` its bytes, `offset` in bytes,
    `dtype` the element type as onnx names it, `shape` the sizes.
    """

    name: str
    size: int | None
    offset: int | None = None
    dtype: FilledText | None = ""
    shape: tuple[int, ...] | None = NO_SHAPE


@dataclass(frozen=True)
class Excluded(PlanRow):
    """A value without an address in the arena, with the reason; its element type and its sizes, as far as they are known.

    `name` is the value and `reason` a sentence; `dtype` and `shape` are as in PlannedBuffer.
    """

    name: str
    reason: str
    dtype: FilledText | None = ""
    shape: tuple[int, ...] | None = NO_SHAPE


@dataclass(frozen=True)
class PlannedInput(PlanRow):
    """An input or output of the model: its element type as onnx names it ("FLOAT"), and its sizes; None where one is not known.

    Over ranges, `shape_formula` has the sizes as formulas. `name` is the tensor, `dtype` its element type, `shape` its sizes in elements.
    """

    OPTIONAL = frozenset({"shape_formula"})

    name: str
    dtype: str | None
    shape: tuple[int, ...] | None
    shape_formula: Stated[tuple[FilledText, ...]] = None


@dataclass(frozen=True)
class PlannedState(PlanRow):
    """An `input` and an `output` of the graph that are one state: the output of a run is the input of the next.

    It keeps the `size` bytes at `offset` of `arena` in the whole run and between runs. `copied` bytes are copied from the output to the
    input after each run, 0 where both have one address. `axis` is that along which the state grows. Such a state at one address has
    `strides`, the bytes from one element to the next on each axis, at every length: those of the output at its largest size. No row moves.
    """

    input: str
    output: str
    axis: int | None = field(default=UNSAID, kw_only=True)
    arena: str
    offset: int
    size: int = UNSAID
    copied: int = UNSAID
    strides: tuple[int, ...] | None = None


@dataclass(frozen=True)
class PlannedStream(PlanRow):
    """An `input` whose rows along an `axis` come one after the other, each of `row_bytes` bytes; there are `rows` of them.

    `reads` has the first row and the number of rows of each read, in order. Each row is read once at most, into a tensor of the plan.
    """

    input: str
    axis: int
    rows: int
    row_bytes: int
    reads: tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class CopyCount(PlanRow):
    """The number of copies of tensors, and their bytes: those that the plan avoids, and those that remain.

    `avoided` and `remaining` count copies, `avoided_bytes` and `remaining_bytes` their bytes.
    """

    avoided: int
    avoided_bytes: int
    remaining: int
    remaining_bytes: int


@dataclass(frozen=True)
class KernelCount(PlanRow):
    """The number of quantised `islands` that run as kernels, and of the float tensors inside of them, which have no address.

    `float_tensors` counts these tensors.
    """

    islands: int
    float_tensors: int


@dataclass(frozen=True)
class ByteTotals(PlanRow):
    """The bytes of all arenas together, and of the constants as stored.

    `arenas` and `constants` are bytes.
    """

    arenas: int
    constants: int


# Copies between two memories.


@dataclass(frozen=True)
class MemoryCopy(PlanRow):
    """The node `node` copies `bytes` bytes of `tensor` in its `step`, before the kernel of the step `before` reads them (None: no kernel).

    It reads `source`, which is at `source_offset` of the memory `source_memory`, and makes `result`, at `offset` of `memory`. A memory is
    the name of an arena, "constants", or "outside", where offsets are None.

    Copies are made in the order of the schedule, one at a time, beside the kernels. This one may write its target from the step
    `target_free` on: only kernels of earlier steps use what was there. Kernels of steps before `source_ready` make its source. The kernel
    of the step `before` waits for it. The one after the step `source_until` does, too (None: none), because it writes over its source.
    """

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
class TransferTime(PlanRow):
    """Times in seconds that follow from the given bandwidth of the slow memory, and from the given MACs per second.

    `copying` is the time of all copies one after the other. `computing` is that of the MACs, `without_overlap` the sum, and `with_overlap`
    the time until all is done where copies run beside kernels, one at a time, as early as the bytes that they read and write allow. Then
    the nodes of the schedule start and end at `starts` and `ends`. The last five are None where no speed of the kernels is given.
    `bandwidth` is in bytes per second, `macs_per_second` in multiply-accumulates.
    """

    bandwidth: int
    copying: float
    macs_per_second: int | None = None
    computing: float | None = None
    without_overlap: float | None = None
    with_overlap: float | None = None
    starts: tuple[float, ...] | None = None
    ends: tuple[float, ...] | None = None


@dataclass(frozen=True)
class PlannedMovement(PlanRow):
    """The copies of a plan between the memory `fast` and the memory `slow`.

    They move `bytes` bytes, of which `forced` are the first copies of inputs and weights, and the only ones of outputs. `weights` says
    whether weights are copied into the fast memory, too.
    """

    fast: str
    slow: str
    weights: Stated[bool] = None
    bytes: int = UNSAID
    forced: int = UNSAID
    copies: Stated[tuple[MemoryCopy, ...]] = None
    time: TransferTime | None = None


# The bytes of arenas as formulas of the dimensions that have a range.


@dataclass(frozen=True)
class SizeText(PlanRow):
    """A size in bytes as an expression of Python in the dimensions of the ranges, which is the largest of `pieces`.

    `bytes` is the expression of the whole size.
    """

    bytes: FilledText
    pieces: tuple[FilledText, ...]


@dataclass(frozen=True)
class ArenaFormula(PlanRow):
    """The bytes of an arena as formulas of the dimensions that have a range.

    `fixed` is the size with the offsets of the plan, `scaled` that with the scaled offsets of its buffers (None without such offsets).
    `peak` is the largest sum of live bytes in one step; None where buffers are live in parts, a state keeps its largest size, or the bytes
    of a tensor have no formula. `name` is that of the arena.
    """

    name: str
    fixed: SizeText
    scaled: SizeText | None = None
    peak: SizeText | None = None

    @property
    def least(self) -> SizeText:
        """The smaller of the sizes: with scaled offsets where there are some."""
        return self.fixed if self.scaled is None else self.scaled


# Graphs and the whole plan.


@dataclass(frozen=True, kw_only=True, repr=False)
class PlannedGraph(PlanRow):
    """The nodes of a graph in the order in which they run, and the buffers that they use.

    `schedule` has the names of the nodes, `steps` the step of each. `operators` has their operators, with the domain where that is not the
    standard one, `operands` and `results` the names of their inputs and outputs, "" for one that is left out, and `attributes` their
    attributes. `constant_nodes` are the nodes that depend on constants alone: they may run once, before the first inference. `bodies` are
    the plans of the bodies of If, Loop, Scan and functions.
    """

    schedule: tuple[str, ...]
    steps: tuple[int, ...]
    buffers: tuple[PlannedBuffer, ...]
    bodies: tuple[PlannedBody, ...] = ()
    operators: Stated[tuple[str, ...]] = None
    constant_nodes: Stated[tuple[str, ...]] = None
    operands: Stated[tuple[tuple[str, ...], ...]] = None
    results: Stated[tuple[tuple[str, ...], ...]] = None
    attributes: Stated[tuple[Attributes, ...]] = None

    @property
    def tensors(self) -> tuple[PlannedBuffer, ...]:
        """The buffers that are tensors of the graph: all but the workspaces."""
        return tuple(buffer for buffer in self.buffers if buffer.kind != WORKSPACE)

    def to_dict(self) -> dict[str, Any]:
        """Return the graph as docs/plan.schema.json describes it, ready for JSON; long lists are last."""
        entries = super().to_dict()
        return {name: entries[name] for name in sorted(entries, key=_OF_GRAPH.__contains__)}


_OF_GRAPH = frozenset(column.name for column in fields(PlannedGraph))


@dataclass(frozen=True, kw_only=True)
class PlannedBody(PlannedGraph):
    """The plan of the body in `attribute` of the node `node`, in `size` bytes of the node's workspace.

    An `attribute` of None is the body of the function that the node calls; its values and nodes have their names in the function. Offsets
    count from the start of the arena, steps from the start of the body. `buffers` are the values of the body, each as in PlannedBuffer.
    """

    node: str
    attribute: str | None
    size: int = UNSAID


class SearchProof(NamedTuple):
    """What a search proved of a plan that was just made. `moved` are bounds of the copied bytes, each of more plans than the last."""

    optimal_over: str | None
    any_order_bound: int | None
    moved: tuple[int, ...] = ()


@dataclass(frozen=True, kw_only=True, repr=False)
class PlanDocument(FixedRules, PlannedGraph):
    """The addresses of all tensors of a model in a run. Sizes and offsets are in bytes, steps count from 0.

    `io` places inputs and outputs inside or outside the arena (see kernels.from_onnx.PlanScope); `overwrite_inputs` says whether inputs
    inside it may be overwritten. `order` is the name of the order. `peak` is the largest sum of live bytes in one step, each buffer and
    part rounded outwards to the alignment, `peak_step` the first such step. No plan of this schedule and these aliases is smaller than
    `lower_bound`; `optimal` says that this plan is as small, `gap` by how many bytes it is larger. `bound` is the kind of proof of the
    bound (see offsets.problem.Bound). `activation_bytes` is the sum of all tensors, each with bytes of its own, `bounds` the upper
    bounds of data-dependent dimensions. `in_place` is the number of tensors written over an operand. `kernels` is None without islands.

    `model` is the name of the model's file without its ending (None for a model in memory), `inputs` are the inputs of its graph, `outputs`
    its outputs. `ranges` are the least and largest sizes of dimensions for which the plan holds; `dims` then has the largest, and
    `formulas` the size of each arena at all sizes. `sums` has the dimensions that are sums of others, as texts in the names of `ranges`
    ("past + 1"). `states` are the states that the plan keeps in an arena. `movement` has the copies between two memories (None: each buffer
    has one memory). `streamed` are the inputs that come row by row: the whole of one is in no memory.

    `version` is that of the format, `digest` the SHA-256 of the model's file. `alignment` binds buffers that own memory. `arenas` have
    names, capacities and sizes, `buffers` the arena, the offset, the size and the live range of each tensor. `copies` counts copies that
    the plan avoids, and those that remain. `constants` are the weights, with offsets in a block of their own. `outside` has what has no
    fixed bytes, `unplanned` what has no size, each with the reason. `totals` are the bytes of all arenas and of all constants. `planner`
    is the name of the planner.
    """

    OPTIONAL = frozenset({*FIXED, "sums", "states", "streamed", "movement", "ranges", "formulas"})

    version: Literal[1] = 1
    digest: FilledText | None = None
    dims: Mapping[str, int] = field(default_factory=dict)
    alignment: int
    arenas: tuple[Arena, ...]
    peak: int = UNSAID
    peak_step: int = UNSAID
    lower_bound: int = UNSAID
    optimal: Stated[bool] = None
    bound: Literal["peak", "parts", "bodies", "every order", "pin", "search", ""] = ""
    activation_bytes: int = UNSAID
    in_place: int = UNSAID
    copies: Stated[CopyCount] = None
    io: Literal["outputs", "inside", "outside"]
    overwrite_inputs: bool = False
    order: Literal["any", "model", "schedule", ""] = ""
    constants: Stated[tuple[Constant, ...]] = None
    outside: Stated[tuple[Excluded, ...]] = None
    unplanned: Stated[tuple[Excluded, ...]] = None
    bounds: Mapping[str, int] = field(default_factory=dict)
    model: FilledText | None = None
    inputs: Stated[tuple[PlannedInput, ...]] = None
    kernels: KernelCount | None = None
    outputs: Stated[tuple[PlannedInput, ...]] = None
    ranges: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    formulas: Stated[tuple[ArenaFormula, ...]] = None
    sums: Mapping[str, FilledText] = field(default_factory=dict)
    movement: Stated[PlannedMovement] = None
    states: tuple[PlannedState, ...] = ()
    streamed: tuple[PlannedStream, ...] = ()
    gap: Stated[int] = None
    totals: Stated[ByteTotals] = None

    @property
    def search(self) -> SearchProof | None:
        """What a search proved, which no file says."""
        return None


# What a written plan has of the JSON of a result.


def document_of(plan: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a written plan has of the JSON of a result: what the check derives from the model, and nothing else.

    How the plan was found, and what a search or a run proved, are in the report of the command and in certificates.
    """
    document = _only(plan, PlanDocument)
    if document.get("movement") is not None:
        document["movement"] = _only(document["movement"], PlannedMovement)
    # A state that is only listed has no address.
    states = [_only(state, PlannedState) for state in document.pop("states", ()) if state["arena"] is not None]
    document |= {"states": states} if states else {}
    if document.get("order") not in {None, *SHOWN_ORDERS}:
        document["order"] = "schedule"
    return document


def _only(row: Mapping[str, Any], kind: type[PlanRow]) -> dict[str, Any]:
    names = {column.name for column in fields(kind)}
    return {name: value for name, value in row.items() if name in names}


# A plan read back from its JSON.

HINT = "onnxtile plan MODEL --emit plan.json writes a plan; docs/plan.schema.json describes it"

_LARGEST = 2**53
"""The largest number that every reader of JSON keeps exact."""


class ReadPlan(NamedTuple):
    """The plan in a file, and the names of the fields there that no plan has."""

    document: PlanDocument
    surplus: tuple[str, ...]


def from_json(data: bytes, where: str) -> ReadPlan:
    """Return the plan in the JSON text `data` of the file `where`. Raises UsageError with the first invalid field."""
    try:
        document = json.loads(data, parse_int=exact)
        version = document.get("version") if isinstance(document, dict) else None
        if version != VERSION or isinstance(version, bool):  # in Python true equals 1
            raise UsageError(f"{where} is not a plan: version is not {VERSION}", hint=HINT)
        surplus = _without_surplus(document, data)
        return ReadPlan(_adapter().validate_json(json.dumps(document) if surplus else data, strict=True), surplus)
    except pydantic.ValidationError as error:
        raise UsageError(f"{where} is not a plan: {first_fault(error)}", hint=HINT) from None
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{where} is not JSON: {error}", hint=HINT) from None


def from_fields(entries: Mapping[str, Any]) -> PlanDocument:
    """Return the plan with these fields. Raises ValueError."""
    return _adapter().validate_python(entries)


def first_fault(error: pydantic.ValidationError) -> str:
    """Return the first invalid field, else the first missing one, and what is wrong with it."""
    first = min(error.errors(), key=lambda fault: "missing" in fault["type"])
    place = ".".join(map(str, first["loc"]))
    return f"{place + ': ' if place else ''}{first['msg']}"


def exact(text: str) -> int:
    """Return the number that `text` is. Raises ValueError for one that some readers of JSON do not keep exact."""
    number = int(text) if len(text) < 20 else _LARGEST + 1
    if abs(number) > _LARGEST:
        raise ValueError(f"a number is larger than {_LARGEST}")
    return number


def _without_surplus(document: Any, data: bytes) -> tuple[str, ...]:
    """Remove from the plan `document`, the JSON in `data`, the fields that no plan has; return their names."""
    try:
        _adapter().validate_json(data, strict=True)
    except pydantic.ValidationError as error:
        faults = [fault["loc"] for fault in error.errors() if fault["type"] == "unexpected_keyword_argument"]
    else:
        return ()
    for place in faults:
        inner = document
        for key in place[:-1]:
            inner = inner[key]
        del inner[place[-1]]
    return tuple(".".join(map(str, place)) for place in faults)


@cache
def _adapter() -> pydantic.TypeAdapter[PlanDocument]:
    return pydantic.TypeAdapter(PlanDocument)


# A fault of a plan.


@dataclass(frozen=True)
class PlanFailure(JsonFields):
    """One fault of a plan: the reason, the names of buffers or tensors, and the step at which it shows (None: at all steps).

    `body` is the body that has the fault, as "node/attribute"; empty for the main graph. `hint` is what helps, where the plan was made so
    by what a user gave. `reason` is a sentence, `names` are the buffers or tensors, `step` counts from 0.
    """

    JSON = "reason names step body"

    reason: str
    names: tuple[str, ...] = ()
    step: int | None = None
    body: str = ""
    hint: str = ""

    def __str__(self) -> str:
        where = f"in {self.body}: " if self.body else ""
        return f"{where}{self.reason}" + ("" if self.step is None else f" (step {self.step})")
