"""What a written plan says, as data that those who write it and those who check it share: names of fields, plain rows, faults.

Nothing here computes a plan or judges one.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import MISSING, dataclass, field, fields
from functools import cache
from typing import Any, ClassVar

from onnxtile.model.formula import SizeFormula, SizePieces

VERSION = 1
"""The version of the JSON of a plan; docs/plan.schema.json describes it."""

SHOWN_ORDERS = frozenset({"any", "model"})
"""Orders that the rows of a plan show: offsets hold in every order of the nodes, or nodes run as in the file."""

_SEARCHED = frozenset({"planner", "ended", "optimal_over", "any_order_bound", "insides", "verdict", "not_run"})
_SEARCHED_MOVEMENT = frozenset({"bound", "lower_bound", "parts_bound", "any_order_bound"})

# Tensors and workspaces that a user names.


@dataclass(frozen=True, kw_only=True, repr=False)
class FixedRules:
    """The tensors and workspaces that a user names, as a plan says them.

    `pins` are the offsets in bytes that they have, `places` their arenas. Tensors of `keeps` share bytes with nothing.
    """

    pins: Mapping[str, int] = field(default_factory=dict)
    places: Mapping[str, str] = field(default_factory=dict)
    keeps: tuple[str, ...] = ()

    @property
    def rules(self) -> dict[str, Any]:
        """The rules that name a tensor, ready for JSON."""
        return {name: written(getattr(self, name)) for name in FIXED if getattr(self, name)}


FIXED: Mapping[str, str] = {"pins": "pinned", "places": "placed", "keeps": "kept"}
"""The fields of FixedRules, and what a tensor is that one of them names."""

# Rows that a plan has and that its check reads as they are.


@dataclass(frozen=True)
class PlannedPart:
    """The `size` bytes of a buffer from its byte `start` on are live from step `first` to step `last` inclusive."""

    start: int
    size: int
    first: int
    last: int


@dataclass(frozen=True)
class CopyCount:
    """The number of copies of tensors, and their bytes: those that the plan avoids, and those that remain."""

    avoided: int
    avoided_bytes: int
    remaining: int
    remaining_bytes: int


@dataclass(frozen=True)
class MemoryCopy:
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
    target_free: int = 0
    source_ready: int = 0
    source_until: int | None = None


@dataclass(frozen=True)
class TransferTime:
    """Times in seconds that follow from the given bandwidth of the slow memory, and from the given MACs per second.

    `copying` is the time of all copies one after the other. `computing` is that of the MACs, `without_overlap` the sum, and `with_overlap`
    the time until all is done where copies run beside kernels, one at a time, as early as the bytes that they read and write allow. Then
    the nodes of the schedule start and end at `starts` and `ends`. The last five are None where no speed of the kernels is given.
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
class PlanFailure:
    """One fault of a plan: the reason, the names of buffers or tensors, and the step at which it shows (None: at all steps).

    `body` is the body that has the fault, as "node/attribute"; empty for the main graph.
    """

    reason: str
    names: tuple[str, ...] = ()
    step: int | None = None
    body: str = ""

    def __str__(self) -> str:
        where = f"in {self.body}: " if self.body else ""
        return f"{where}{self.reason}" + ("" if self.step is None else f" (step {self.step})")

    def to_dict(self) -> dict[str, Any]:
        """Return the fields, ready for JSON."""
        return {**vars(self), "names": list(self.names)}


# The document: plain rows become JSON.


@dataclass(frozen=True, repr=False)
class WrittenRow:
    """A row of a plan. Of its fields, those in OPTIONAL are left out of the JSON where they have their default."""

    OPTIONAL: ClassVar[frozenset[str]] = frozenset()

    def to_dict(self) -> dict[str, Any]:
        """Return the row as docs/plan.schema.json describes it, ready for JSON."""
        kind: Any = type(self)
        defaults = _defaults(kind)
        return {
            name: value if type(value) in _PLAIN else written(value)
            for name, value in vars(self).items()
            if name not in defaults or value != defaults[name]
        }


@cache
def _defaults(row: type[Any]) -> Mapping[str, Any]:
    """Return the default of each optional field."""
    optional = (one for one in fields(row) if one.name in row.OPTIONAL)
    return {one.name: one.default if one.default_factory is MISSING else one.default_factory() for one in optional}


_PLAIN = frozenset({type(None), bool, int, float, str})
"""Types of values that JSON has."""


def written(value: Any) -> Any:
    """Return `value` ready for JSON: rows as objects, formulas as Python expressions."""
    if type(value) in _PLAIN:
        return value
    if isinstance(value, tuple | list):
        return [inner if type(inner) in _PLAIN else written(inner) for inner in value]
    if isinstance(value, WrittenRow):
        return value.to_dict()
    if isinstance(value, Mapping):
        return {name: inner if type(inner) in _PLAIN else written(inner) for name, inner in value.items()}
    return str(value) if isinstance(value, SizeFormula | SizePieces) else written(vars(value))


def document_of(plan: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a written plan has of the JSON of a result: what the check derives from the model, and nothing else.

    How the plan was found, and what a search or a run proved, are in the report of the command and in certificates.
    """
    document = _without(plan, _SEARCHED)
    if plan.get("movement") is not None:
        document["movement"] = _without(plan["movement"], _SEARCHED_MOVEMENT)
    # A state that is only listed has no address.
    states = [_without(state, {"source"}) for state in plan.get("states", ()) if state["arena"] is not None]
    document.pop("states", None)
    document |= {"states": states} if states else {}
    if document.get("order") not in {None, *SHOWN_ORDERS}:
        document["order"] = "schedule"
    return document


def _without(row: Mapping[str, Any], names: Collection[str]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if name not in names}
