"""Calls of local functions, written out in their places."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

import onnx_ir as ir
from onnx_ir.passes.common import InlinePass

from onnxtile.model.walk import bodies_of


def inline_calls(model: ir.Model, wanted: Callable[[ir.Function], bool] | None = None) -> None:
    """Put the bodies of the `wanted` local functions (None: all) in the places of their calls (in place).

    Raises ValueError or onnx_ir's PassError where that cannot be; then `model` is used up.
    """
    _Inliner(wanted)(model)


class _Inliner(InlinePass):
    """onnx_ir's pass, but for the search of free names: that counts from 1 for each copy of a name, this goes on after the last copy."""

    def __init__(self, wanted: Callable[[ir.Function], bool] | None) -> None:
        super().__init__(wanted)
        self._nodes: dict[str, int] = {}
        self._values: dict[str, int] = {}

    def _instantiate_call(self, node: ir.Node, call_site_id: str) -> tuple[Sequence[ir.Node], Sequence[ir.Value]]:
        """Copy the body of the function while its names are free ones, which the pass keeps."""
        body = list(_as_copied(self._functions[node.op_identifier()]))
        named: list[ir.Node | ir.Value] = [*body, *(value for one in body for value in one.outputs)]
        own = [one.name for one in named]
        for one in named:
            if isinstance(one, ir.Node):
                one.name = _free(one.name or "node", self._used_node_names, self._nodes)
            else:
                one.name = _free(one.name or "val", self._used_value_names, self._values)
        try:
            return super()._instantiate_call(node, call_site_id)
        finally:
            for one, name in zip(named, own, strict=True):
                one.name = name


def _as_copied(nodes: Iterable[ir.Node]) -> Iterator[ir.Node]:
    """Yield `nodes` in the order in which the pass names their copies: each after the nodes of its bodies."""
    for node in nodes:
        for body in bodies_of(node):
            yield from _as_copied(body.graph)
        yield node


def _free(name: str, used: set[str], last: dict[str, int]) -> str:
    """Return `name`, or its first free copy: name_2, name_3 ... `last` has the last number of each name, and is changed."""
    found = name
    while found in used or found in last:
        last[name] = last.get(name, 1) + 1
        found = f"{name}_{last[name]}"
    last.setdefault(found, 1)
    return found
