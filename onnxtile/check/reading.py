"""What the check reads of a model in memory, as plain data: its graph, what is known of its values, the plan in its metadata."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from functools import cached_property
from typing import Any, NamedTuple

import onnx
import onnx_ir as ir
import pydantic

from onnxtile.check.graph import FEW, Graph, GraphModel, GraphPath, PlainModel, Value, ValueFacts
from onnxtile.declare.layout_rules import FIXED
from onnxtile.declare.plan_document import (
    HINT,
    NO_SHAPE,
    SHARED,
    SHOWN_ORDERS,
    UNIQUE,
    WORKSPACE,
    PlanDocument,
    PlannedBody,
    PlannedBuffer,
    PlannedPart,
    exact,
    first_fault,
    from_fields,
)
from onnxtile.model import keys
from onnxtile.model.binding import Unbound, binding, free_inputs
from onnxtile.model.constants import Constants
from onnxtile.model.formula import SizeFormula
from onnxtile.model.topology import bodies_of
from onnxtile.model.validity import without_weights
from onnxtile.shapes.opened_calls import inside_of, unfold
from onnxtile.shapes.resolve import Shapes
from onnxtile.system.errors import UsageError

_KINDS = {
    **{"SequenceType": "sequence", "OptionalType": "optional", "SparseTensorType": "sparse tensor"},
    "TensorType": "tensor",
}
_READS_NUMBERS = {"Slice": 1, "Dropout": 2, "QLinearConcat": 0}
"""The first operand whose numbers the check reads, by operator; it reads those of calls, too."""


def plain_model(model: ir.Model, shapes: Shapes, constants: Constants, content: bytes | None = None) -> PlainModel:
    """Return `model` with what `shapes` and `constants` know of its values, also inside calls of functions.

    `content` are the bytes of the file of an opened model, where these are known.
    """
    opened = unfold(model, shapes, constants)
    facts = _Facts(opened.model, opened.shapes, opened.constants)
    known = {path: dict(facts.of_values(graph)) for path, graph in _graphs(opened.model.graph, ())}
    proto = without_weights(model) if content is None else onnx.ModelProto.FromString(content)
    return PlainModel(proto, known, model.ir_version)


class RangedValue(NamedTuple):
    """What inference over ranges knows of a value: its sizes as formulas, and the bits of an element."""

    shape: tuple[SizeFormula, ...] | None
    bits: int | None


def ranged_values(model: ir.Model, shapes: Shapes) -> dict[str, RangedValue]:
    """Return the values of the main graph of `model` over the ranges of its dimensions, by name."""
    values = (*model.graph.inputs, *(value for node in model.graph for value in node.outputs))
    types = [(value, shapes.dtype(value)) for value in values]
    return {
        value.name or "": RangedValue(shapes.formulas(value), None if dtype is None else dtype.bitwidth)
        for value, dtype in types
    }


def _graphs(graph: ir.Graph, path: GraphPath) -> Iterator[tuple[GraphPath, ir.Graph]]:
    yield path, graph
    for index, node in enumerate(graph):
        inside = inside_of(node)
        bodies = [(body.key, body.graph) for body in bodies_of(node) if body.graph is not inside]
        for name, body in [*bodies, *([] if inside is None else [("", inside)])]:
            yield from _graphs(body, (*path, (index, name)))


class _Facts:
    def __init__(self, model: ir.Model, shapes: Shapes, constants: Constants) -> None:
        self._model, self._shapes, self._constants = model, shapes, constants
        self._unbound = Unbound.from_inputs(free_inputs(model))

    def of_values(self, graph: ir.Graph) -> Iterator[tuple[str, ValueFacts]]:
        """Yield the values of a graph, without those of bodies, by name."""
        wanted = set(self._wanted(graph))
        self._constants.prepare(wanted)
        results = (value for node in graph for value in node.outputs)
        for value in (*graph.inputs, *graph.initializers.values(), *results):
            if value.name:
                yield value.name, self._known(value, is_wanted=value in wanted)

    def _known(self, value: ir.Value, *, is_wanted: bool) -> ValueFacts:
        shapes, dtype = self._shapes, self._shapes.dtype(value)
        sizes = shapes.sizes(value)
        kind = None if value.type is None else _KINDS.get(type(value.type).__name__)
        unknown = "" if sizes is not None and dtype is not None else self._why_unknown(value)
        numbers = tuple(self._constants.array(value).ravel().tolist()) if is_wanted else None
        code = None if dtype is None else dtype.value or None
        return ValueFacts(sizes, code, shapes.is_bound(value), shapes.never(value), unknown, kind, numbers)

    def _wanted(self, graph: ir.Graph) -> Iterator[ir.Value]:
        """Yield the constants that nodes of `graph` compute, and whose numbers decide where bytes are."""
        for node in graph:
            for value in node.outputs if node.op_type != "Constant" else ():
                if value in self._constants and self._is_few(value) and any(map(self._reads_numbers, value.uses())):
                    yield value

    def _is_few(self, value: ir.Value) -> bool:
        sizes, dtype = self._shapes.sizes(value), self._shapes.dtype(value)
        return sizes is not None and dtype not in {None, ir.DataType.STRING} and math.prod(sizes) <= FEW

    def _reads_numbers(self, use: Any) -> bool:
        if use.node.op_identifier() in self._quantising:
            return True
        return bool(use.idx >= _READS_NUMBERS.get(use.node.op_type, use.idx + 1))

    @cached_property
    def _quantising(self) -> set[ir.OperatorIdentifier]:
        """The functions in which tensors are quantised, by scales among their operands."""
        functions = self._model.functions.items()
        return {key for key, function in functions if any(node.op_type == "QuantizeLinear" for node in function)}

    def _why_unknown(self, value: ir.Value) -> str:
        """Return why the bytes of `value` are not known."""
        if self._shapes.sizes(value) is not None:
            return "its element type is not known"
        bindable = [symbol for dim in self._shapes.dims(value) or () for symbol in self._unbound.bindable(dim)]
        if bindable:
            symbols = " and ".join(map(repr, dict.fromkeys(bindable)))
            return f"its size depends on {symbols}: bind it with {binding(bindable)}"
        return self._unbound.once_bound(self._shapes.reason(value))


# The document of a plan, read back from the metadata of a planned model: addresses, aliases, steps and arenas.


def from_marks(model: ir.Model, where: str) -> PlanDocument:
    """Return the plan in the metadata of `model`, of the file `where`.

    It has addresses, aliases, steps and arenas; other claims are missing. Raises UsageError for a model without a plan.
    """
    read = GraphModel(without_weights(model))
    text = read.marks.get(keys.PLAN)
    if text is None:
        raise UsageError(f"{where} is not a planned model: its graph has no {keys.PLAN!r}", hint=HINT)
    try:
        summary = dict(json.loads(text, parse_int=exact))
        main = _marked(read.graph, "", None)
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
        return from_fields(whole)
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        reason = first_fault(error) if isinstance(error, pydantic.ValidationError) else str(error)
        raise UsageError(f"{where} is not a planned model: its metadata is not a plan ({reason})") from None


def _marked(graph: Graph, name: str, attribute: str | None) -> PlannedBody:
    """Return the claims in the metadata of `graph` and of its bodies."""
    rows = [row for value in graph.inputs if (row := _row_of_marks(value)) is not None]
    rows += [row for node in graph.nodes for value in node.outputs if (row := _row_of_marks(value)) is not None]
    order = sorted(graph.nodes, key=lambda node: int(node.marks[keys.STEP]))
    bodies, names = [], graph.names
    for node in order:
        if keys.WORKSPACE_AT in node.marks:
            workspace = json.loads(node.marks[keys.WORKSPACE_AT], parse_int=exact)
            rows.append(_workspace_row(f"{names[node]} {SHARED}", workspace))
        if keys.UNIQUE_WORKSPACE_AT in node.marks:
            workspace = json.loads(node.marks[keys.UNIQUE_WORKSPACE_AT], parse_int=exact)
            rows.append(_workspace_row(f"{names[node]} {UNIQUE}", workspace))
        bodies += [_marked(body, names[node], at) for at, body in node.entered().items() if at is not None]
    steps = tuple(int(node.marks[keys.STEP]) for node in order)
    return PlannedBody(
        node=name,
        attribute=attribute,
        schedule=tuple(names[node] for node in order),
        steps=steps,
        buffers=tuple(rows),
        bodies=tuple(bodies),
    )


def _row_of_marks(value: Value) -> PlannedBuffer | None:
    marks = value.marks
    if keys.ARENA not in marks:
        return None
    address = (marks[keys.ARENA], int(marks[keys.OFFSET]), int(marks[keys.SIZE]))
    parts = tuple(PlannedPart(**part) for part in json.loads(marks.get(keys.PARTS, "[]"), parse_int=exact))
    return PlannedBuffer(value.name, *address, alias=marks.get(keys.ALIAS_OF), parts=parts, strides=NO_SHAPE)


def _workspace_row(name: str, workspace: dict[str, Any]) -> PlannedBuffer:
    live_range = {key: workspace[key] for key in ("first", "last") if key in workspace}
    return PlannedBuffer(name, workspace["arena"], workspace["offset"], workspace["size"], kind=WORKSPACE, **live_range)
