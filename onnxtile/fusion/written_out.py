"""Records of calls that a function of the user's had inside: once that is written out, each of its calls has one of its own.

The names in the record are those of the function. In the graph they may be taken, by another call of the same function, or by a constant
that is not the same; and what the function returned has the name that the graph gave it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import replace
from itertools import chain, count

import onnx_ir as ir

from onnxtile import keys
from onnxtile.fusion.record import (
    ConstantRecord,
    NodeRecord,
    Past,
    Record,
    ValueRecord,
    dumps,
    fused_calls,
    of_value,
    past_of,
)
from onnxtile.model.walk import all_nodes, all_values, main_graphs

InnerCalls = Mapping[str, tuple[str, ...]]
"""The names of the results of calls inside functions, by the number of the record."""


def calls_inside(model: ir.Model, functions: Collection[ir.Function]) -> InnerCalls:
    """Return the calls inside those `functions` of the user's that are to be written out, in which places count for nothing from now on."""
    for node in (node for function in functions for node in function.all_nodes()):
        node.metadata_props.pop(keys.PLACE, None)
    outside = {node for graph in main_graphs(model) for node in graph}
    calls = (call for call in fused_calls(model) if call not in outside)
    return {call.metadata_props[keys.FUSED]: tuple(value.name or "" for value in call.outputs) for call in calls}


def renew_records(model: ir.Model, inside: InnerCalls) -> None:
    """Give each call of the main graph that was `inside` a function a record of its own; a damaged record stays as it is."""
    calls = [node for graph in main_graphs(model) for node in graph if node.metadata_props.get(keys.FUSED) in inside]
    if not calls:
        return
    with suppress(ValueError):
        past = past_of(model)
        others = [r for number, r in enumerate(past.records) if r is not None and str(number) not in inside]
        values = {value.name or "" for value in all_values(model)}.union(*map(_values, others))
        nodes = {node.name or "" for node in all_nodes(model)}.union(node.name for r in others for node in r.nodes)
        renewing = _Renewing(past, values, nodes)
        numbers = [renewing.record(call.metadata_props[keys.FUSED], _results(call, inside)) for call in calls]
        for call, number in zip(calls, numbers, strict=True):
            call.metadata_props[keys.FUSED] = number
        model.graph.metadata_props[keys.ORIGINAL] = dumps(Past(past.history, tuple(renewing.records)))


def _results(call: ir.Node, inside: InnerCalls) -> dict[str, ValueRecord]:
    names = inside[call.metadata_props[keys.FUSED]]
    return {name: of_value(value) for name, value in zip(names, call.outputs, strict=True)}


def _values(record: Record) -> set[str]:
    nodes = {value.name for node in record.nodes for value in node.outputs}
    return nodes | {constant.value.name for constant in record.constants}


class _Renewing:
    """Writes records behind those of the `past`, with names that are neither among `values` nor among `nodes`."""

    def __init__(self, past: Past, values: set[str], nodes: set[str]) -> None:
        self._past = past
        self._values = values
        self._nodes = nodes
        self.records = list(past.records)

    def record(self, number: str, known: dict[str, ValueRecord]) -> str:
        """Write the record with `number` anew, and those inside it; return its new number. `known` are the values that are renewed."""
        old = self._past.numbered(number)
        constants = tuple(self._constant(one, known) for one in old.constants)
        nodes = tuple(self._node(one, known) for one in old.nodes)
        self.records.append(replace(old, nodes=nodes, constants=constants))
        return str(len(self.records) - 1)

    def _constant(self, one: ConstantRecord, known: dict[str, ValueRecord]) -> ConstantRecord:
        node = None if one.node is None else self._node(one.node, known)
        return replace(one, value=self._value(one.value, known), node=node, place=None)

    def _node(self, node: NodeRecord, known: dict[str, ValueRecord]) -> NodeRecord:
        """Return the record of a node of this call alone, which has no place in the graph."""
        metadata = {key: text for key, text in node.metadata.items() if key != keys.PLACE}
        if keys.FUSED in metadata:
            metadata[keys.FUSED] = self.record(metadata[keys.FUSED], known)
        outputs = tuple(self._value(one, known) for one in node.outputs)
        name = _free(node.name, self._nodes)
        return replace(node, outputs=outputs, place=None, name=name, metadata=metadata, copied=False)

    def _value(self, one: ValueRecord, known: dict[str, ValueRecord]) -> ValueRecord:
        if one.name not in known:
            known[one.name] = replace(one, name=_free(one.name, self._values))
        return known[one.name]


def _free(name: str, taken: set[str]) -> str:
    """Return `name`, or the first copy of it that is not `taken`, and take it; nothing has no name."""
    found = next(one for one in chain([name], (f"{name}_{n}" for n in count(2))) if one not in taken) if name else ""
    taken.add(found)
    return found
