"""The pass that replaces calls of local functions by their nodes; a file of its own, since onnx_ir's passes take long to load."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

import onnx_ir as ir
from onnx_ir.passes.common import InlinePass

from onnxtile.model.topology import bodies_of


class Inliner(InlinePass):
    """onnx_ir's pass, but for the search of free names: that counts from 1 for each copy of a name, this goes on after the last copy."""

    def __init__(self, wanted: Callable[[ir.Function], bool] | None) -> None:
        super().__init__(wanted)
        self._nodes: dict[str, int] = {}
        self._values: dict[str, int] = {}

    def _instantiate_call(self, node: ir.Node, call_site_id: str) -> tuple[Sequence[ir.Node], Sequence[ir.Value]]:
        """Copy the body of the function while its names are free ones, which the pass keeps."""
        body = list(_as_copied(self._functions[node.op_identifier()]))
        named: list[ir.Node | ir.Value] = [*body, *(value for renamed in body for value in renamed.outputs)]
        old_names = [renamed.name for renamed in named]
        for renamed in named:
            if isinstance(renamed, ir.Node):
                renamed.name = _free(renamed.name or "node", self._used_node_names, self._nodes)
            else:
                renamed.name = _free(renamed.name or "val", self._used_value_names, self._values)
        try:
            return super()._instantiate_call(node, call_site_id)
        finally:
            for renamed, name in zip(named, old_names, strict=True):
                renamed.name = name


def _as_copied(nodes: Iterable[ir.Node]) -> Iterator[ir.Node]:
    """Yield `nodes` in the order in which the pass names their copies: each after the nodes of its bodies."""
    for node in nodes:
        for body in bodies_of(node):
            yield from _as_copied(body.graph)
        yield node


def _free(name: str, used: set[str], last: dict[str, int]) -> str:
    """Return `name`, or its first free copy: name_2, name_3 ... `last` has the last number of each name, and is changed."""
    copy = name
    while copy in used or copy in last:
        last[name] = last.get(name, 1) + 1
        copy = f"{name}_{last[name]}"
    last.setdefault(copy, 1)
    return copy
