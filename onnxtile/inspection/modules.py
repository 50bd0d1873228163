"""Sums over the modules of a model, which exporters leave in the names of nodes: /layer1/0/conv1/Conv or layer1.0.conv1."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from onnxtile.inspection.layers import LayerCost

Stored: TypeAlias = Mapping[str, Mapping[str, int]]
"""For each constant that is read the parameters that it is a view of, and how many elements these have."""


@dataclass
class Module:
    """All nodes of the main graph whose names begin with `name`; sizes in bytes, sums of what is known.

    `unknown` are nodes whose MACs or bytes are not known, `uncounted` those whose FLOPs are not. A parameter that several of the nodes
    read counts once.
    """

    name: str
    depth: int
    nodes: int = 0
    macs: int = 0
    flops: int = 0
    read: int = 0
    written: int = 0
    unknown: int = 0
    uncounted: int = 0
    _parameters: dict[str, int] = field(default_factory=dict, repr=False)

    @property
    def parameters(self) -> int:
        """How many elements the parameters have that its nodes read."""
        return sum(self._parameters.values())

    def add(self, layer: LayerCost, stored: Stored) -> None:
        """Take up a node."""
        self.nodes += 1
        self.macs += layer.work.total or 0
        self.flops += layer.work.operations or 0
        self.read += layer.read or 0
        self.written += layer.written or 0
        self.unknown += None in {layer.work.total, layer.read, layer.written}
        self.uncounted += layer.work.operations is None
        for one in layer.inputs:
            self._parameters.update(stored.get(one.name, {}))

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON of one module."""
        return {
            "module": self.name,
            "depth": self.depth,
            "nodes": self.nodes,
            "parameters": self.parameters,
            "macs": self.macs,
            "flops": self.flops,
            "bytes_read": self.read,
            "bytes_written": self.written,
            "unknown_nodes": self.unknown,
            "uncounted_nodes": self.uncounted,
        }


def modules(layers: Iterable[LayerCost], stored: Stored) -> tuple[Module, ...]:
    """Return the modules of the nodes of the main graph, each before those inside, in the order in which the nodes stand.

    The first, without a name, is the model. The last part of a node's name is the node itself.
    """
    found: dict[tuple[str, ...], Module] = {(): Module("", 0)}
    inside: dict[tuple[str, ...], list[tuple[str, ...]]] = {(): []}
    for layer in layers:
        if layer.body:
            continue
        path = _path(layer.node)
        for depth in range(len(path) + 1):
            at = path[:depth]
            if at not in found:
                found[at] = Module("/".join(at), depth)
                inside[at] = []
                inside[at[:-1]].append(at)
            found[at].add(layer, stored)
    order: list[Module] = []
    todo: list[tuple[str, ...]] = [()]
    while todo:
        at = todo.pop()
        order.append(found[at])
        todo += reversed(inside[at])
    return tuple(order)


def _path(name: str) -> tuple[str, ...]:
    parts = name.split("/") if "/" in name else name.split(".")
    return tuple(part for part in parts[:-1] if part)
