"""A local function whose calls have different sizes becomes one for each, since each of them is cut differently.

Copies get numbers, like meta-ops with different bodies: Linear, Linear.2, Linear.3 ...
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import onnx_ir as ir

from onnxtile import keys
from onnxtile.model.walk import all_nodes
from onnxtile.tiling.function_table import FunctionTable
from onnxtile.tiling.tensors import NotTiled


class FunctionCopies:
    """The functions of a model that have been copied, one for each size that they are called with."""

    def __init__(self, model: ir.Model, table: FunctionTable) -> None:
        self._model = model
        self._table = table
        self._made: dict[ir.OperatorIdentifier, list[ir.Function]] = {}

    def split(self, is_tileable: Callable[[ir.Node], bool]) -> None:
        """Give each size that a function with a tileable node somewhere inside is called with a copy of it."""
        functions = self._model.functions
        hosts = _reaching(self._model, is_tileable)
        for key in _callers_first(self._model):
            if key in hosts and not functions[key].attributes:
                self._split(functions[key])

    def merge(self) -> None:
        """Take back the copies that are still alike, innermost first: nothing in them was cut."""
        for original, made in reversed(self._made.items()):
            kept: dict[tuple[object, ...], ir.Function] = {}
            for function in (self._model.functions[original], *made):
                first = kept.setdefault(_content(function), function)
                if first is not function:
                    self._replace(function, first)

    def _split(self, function: ir.Function) -> None:
        try:
            calls = self._table.calls(function)
        except NotTiled:
            return
        for group in list(calls.values())[1:]:
            copy = _named(function, self._free_name(function))
            self._table.add(copy, group)
            self._made.setdefault(function.identifier(), []).append(copy)

    def _free_name(self, function: ir.Function) -> str:
        stem, number = keys.meta_op(function.name), 2
        while (function.domain, f"{stem}.{number}", function.overload) in self._model.functions:
            number += 1
        return f"{stem}.{number}"

    def _replace(self, function: ir.Function, by: ir.Function) -> None:
        for node in all_nodes(self._model):
            if node.op_identifier() == function.identifier():
                node.op_type = by.name
        del self._model.functions[function.identifier()]


def _named(function: ir.Function, name: str) -> ir.Function:
    """Return a copy of `function` called `name`."""
    copy = function.clone()
    attributes = list(copy.attributes.values())
    named = ir.Function(function.domain, name, function.overload, graph=copy.graph, attributes=attributes)
    named.metadata_props.update(function.metadata_props)
    named.doc_string = function.doc_string
    return named


def _content(function: ir.Function) -> tuple[object, ...]:
    """Return the content of a copy of a function: its nodes, by operator and name."""
    return tuple((node.op_identifier(), node.name) for node in function)


def _callees(model: ir.Model, function: ir.Function) -> list[ir.OperatorIdentifier]:
    called = dict.fromkeys(node.op_identifier() for node in function.all_nodes())
    return [key for key in called if key in model.functions]


def _callers_first(model: ir.Model) -> list[ir.OperatorIdentifier]:
    """Return the functions, each after all functions that call it. Functions are not recursive."""
    done: dict[ir.OperatorIdentifier, None] = {}

    def visit(key: ir.OperatorIdentifier) -> None:
        if key in done:
            return
        for callee in _callees(model, model.functions[key]):
            visit(callee)
        done[key] = None

    for key in model.functions:
        visit(key)
    return list(reversed(done))


def _reaching(model: ir.Model, is_tileable: Callable[[ir.Node], bool]) -> set[ir.OperatorIdentifier]:
    """Return the functions that have a tileable node, or call one that has."""
    found: set[ir.OperatorIdentifier] = set()
    for key in reversed(_callers_first(model)):
        function = model.functions[key]
        nodes: Iterator[ir.Node] = iter(function.all_nodes())
        if any(is_tileable(node) or node.op_identifier() in found for node in nodes):
            found.add(key)
    return found
