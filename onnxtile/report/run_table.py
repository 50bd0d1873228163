"""The table that a runtime runs a plan from: all values by index, and the nodes in order with the indices of operands and results."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from math import prod
from typing import Any

from onnxtile.report.bodies import rows_with_bodies
from onnxtile.report.format import PlanJson
from onnxtile.report.layout import BufferJson, runs
from onnxtile.report.state_words import is_kept

ABSENT = -1
"""The index of an operand or result that is left out."""

_WINDOW = ("before", "target_free", "source_ready", "source_until")
"""The steps of a copy between memories, in the order of `TableCopy`."""


@dataclass(frozen=True)
class TableValue:
    """A value: a buffer of an arena, a constant, or a value that the caller or a kernel holds.

    `block` is the name of its arena, None outside of arenas. `offset` (bytes) counts from the start of the arena or, of a constant, from
    the start of the block of constants; None without an address. `size` is in bytes, None where it is not known. `first` and `last` are
    steps, both inclusive. `alias` is the index of the value that owns the bytes, if that is another. `strides` are the elements from one
    index of each axis to the next.
    """

    name: str
    kind: str
    block: str | None
    offset: int | None
    size: int | None
    first: int
    last: int
    alias: int | None
    dtype: str | None
    shape: tuple[int, ...] | None
    strides: tuple[int, ...] = ()


@dataclass(frozen=True)
class TableNode:
    """A node: its operator, the step in which it runs, and the indices of its operands and results (ABSENT: left out)."""

    name: str
    domain: str
    op_type: str
    step: int
    operands: tuple[int, ...]
    results: tuple[int, ...]
    attributes: Mapping[str, Any]


@dataclass(frozen=True)
class TableState:
    """An input and an output that are one state, by their indices: `size` bytes, of which `copied` are copied after each run.

    At every length of a state that grows, `rows` rows begin `pitch` bytes apart. Another state is one row.
    """

    before: int
    after: int
    size: int
    copied: int
    rows: int
    pitch: int


@dataclass(frozen=True)
class TableCopy:
    """A copy between memories: its source and its result, by their indices, its bytes, its step, and the steps between which it may run.

    See planning.movement.copies.MemoryCopy; None: no step.
    """

    source: int
    result: int
    size: int
    step: int
    before: int | None
    target_free: int
    source_ready: int
    source_until: int | None


@dataclass(frozen=True)
class RunTable:
    """The values of a plan and the nodes of its main graph that run at each inference, in order.

    `values` begin with the `planned` buffers of arenas by their first step; constants and values outside follow. `inputs` and `outputs` are
    indices of values. `states` are those that the plan keeps in an arena, `copies` those between two memories.
    """

    values: tuple[TableValue, ...]
    planned: int
    nodes: tuple[TableNode, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    states: tuple[TableState, ...] = ()
    copies: tuple[TableCopy, ...] = ()

    @property
    def constants(self) -> tuple[TableValue, ...]:
        """The constants that have an offset."""
        return tuple(v for v in self.values if v.kind == "constant" and v.offset is not None)


def run_table(plan: PlanJson) -> RunTable:
    """Return the table of `plan`. A node with a body, such as an If, is one node; a bare problem has no nodes."""
    rows = sorted(rows_with_bodies(plan), key=lambda row: (row["first"], row["last"]))
    # A tensor of a body has the path to it in its name; one of the main graph may be called like that, and goes first.
    main = {id(row) for row in plan["buffers"]}
    numbers = {row["name"]: i for i, row in enumerate(rows)}
    numbers |= {row["name"]: i for i, row in enumerate(rows) if id(row) in main}
    values = [_planned(row, numbers) for row in rows]
    described = tuple(_described(plan))
    ends = [[row["name"] for row in plan.get(key) or ()] for key in ("inputs", "outputs")]
    read = chain.from_iterable((*node["operands"], *node["results"]) for node in described)
    constants = {row["name"]: row for row in reversed(plan.get("constants") or ())}
    known = {row["name"]: row for key in ("outside", "unplanned", "outputs", "inputs") for row in plan.get(key) or ()}
    index = {row["name"]: numbers[row["name"]] for row in plan["buffers"]}
    for name in dict.fromkeys(chain(reversed(constants), *ends, read)):
        if name and name not in index:
            index[name] = len(values)
            values.append(_unplanned(name, constants.get(name), known.get(name, {})))
    nodes = tuple(_node(node, index) for node in described)
    inputs, outputs = (tuple(index[name] for name in names) for names in ends)
    kept = (state for state in plan.get("states") or () if is_kept(state))
    states = tuple(
        TableState(index[s["input"]], index[s["output"]], s["size"], s["copied"], *_rows_of(s)) for s in kept
    )
    listed = (plan.get("movement") or {}).get("copies", ())
    copies = tuple(
        TableCopy(index[one["source"]], index[one["result"]], one["bytes"], one["step"], *(one[key] for key in _WINDOW))
        for one in listed
    )
    return RunTable(tuple(values), len(rows), nodes, inputs, outputs, states, copies)


def _described(plan: PlanJson) -> Iterator[Mapping[str, Any]]:
    """Yield the nodes of the main graph of `plan` that run at each inference, if the plan describes them."""
    constant = set(plan.get("constant_nodes") or ())
    lists = [plan.get(key) or () for key in ("operators", "operands", "results", "attributes")]
    for (step, name), operator, operands, results, attributes in zip(runs(plan), *lists, strict=False):
        if name not in constant:
            yield {
                **{"name": name, "operator": operator, "step": step},
                **{"operands": operands, "results": results, "attributes": attributes},
            }


def _node(node: Mapping[str, Any], index: Mapping[str, int]) -> TableNode:
    domain, _, op_type = node["operator"].rpartition("::")
    operands, results = (tuple(index.get(name, ABSENT) for name in node[key]) for key in ("operands", "results"))
    return TableNode(node["name"], domain, op_type, node["step"], operands, results, node["attributes"])


def _planned(row: BufferJson, numbers: Mapping[str, int]) -> TableValue:
    owner = row.get("alias")
    return TableValue(
        name=row["name"],
        kind=row["kind"],
        block=row["arena"],
        offset=row["offset"],
        size=row["size"],
        first=row["first"],
        last=row["last"],
        alias=None if owner is None else numbers.get(owner),
        dtype=row.get("dtype"),
        shape=_shape(row),
        strides=_strides(row),
    )


def _unplanned(name: str, constant: Mapping[str, Any] | None, known: Mapping[str, Any]) -> TableValue:
    """Return the value `name`, which has no address in an arena: `constant` is its row if it is one, `known` its type and shape."""
    row = known if constant is None else constant
    return TableValue(
        name=name,
        kind="outside" if constant is None else "constant",
        block=None,
        offset=row.get("offset"),
        size=row.get("size"),
        first=0,
        last=0,
        alias=None,
        dtype=row.get("dtype"),
        shape=_shape(row),
        strides=_strides(row),
    )


def _strides(row: Mapping[str, Any]) -> tuple[int, ...]:
    """Return the elements from one index of each axis of `row` to the next: those it has, else those of contiguous elements."""
    shape = _shape(row) or ()
    if row.get("strides"):
        size = element_bytes(row)
        return tuple(stride // size for stride in row["strides"])
    return tuple(prod(shape[axis + 1 :]) for axis in range(len(shape)))


def element_bytes(row: Mapping[str, Any]) -> int:
    """Return the bytes of an element of `row`, a tensor that is not contiguous."""
    size: int = row["size"] // prod(row["shape"])
    return size


def _shape(row: Mapping[str, Any]) -> tuple[int, ...] | None:
    shape = row.get("shape")
    return None if shape is None else tuple(shape)


def _rows_of(state: Mapping[str, Any]) -> tuple[int, int]:
    """Return the number of rows of `state` before the axis that grows, and the bytes from one to the next."""
    if not state["strides"] or not state["axis"] or not state["size"]:
        return 1, state["size"]
    pitch = state["strides"][state["axis"] - 1]
    return state["size"] // pitch, pitch
