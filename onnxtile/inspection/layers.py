"""The cost of each node: bytes read and written, and operations."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import onnx_ir as ir

from onnxtile.graph import dependencies, node_ids
from onnxtile.inspection.inlined import NodeWork, works
from onnxtile.inspection.quantisation import factors
from onnxtile.inspection.work import operator_name
from onnxtile.inspection.workspaces import workspaces
from onnxtile.model.bytes import tensor_bytes
from onnxtile.model.constants import Constants
from onnxtile.model.shapes import Dims, Shapes, resolve
from onnxtile.model.walk import graphs_in

_READS_WHAT_IT_WRITES = {"Gather", "GatherElements", "GatherND", "Slice"}
"""These read of their first input as many elements as they write."""
_READS_NOTHING = {"Shape", "Size"}


@dataclass(frozen=True)
class Tensor:
    """A value: element type, dimensions (a name where free, None where unknown) and bytes, each None where nothing is known."""

    name: str
    dtype: str | None
    dims: Dims | None
    bytes: int | None
    constant: bool

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON of one tensor."""
        shape = None if self.dims is None else list(self.dims)
        return {"name": self.name, "dtype": self.dtype, "shape": shape, "bytes": self.bytes, "constant": self.constant}


@dataclass(frozen=True)
class LayerCost:
    """One node: `body` says in which body of which node it stands (empty: in the main graph); sizes in bytes."""

    node: str
    op: str
    body: str
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    work: NodeWork = field(default_factory=NodeWork)
    read: int | None = None
    written: int | None = None
    weights: int | None = None
    """Those bytes of `read` that are constants."""
    workspace: int | None = 0
    """Bytes that the pattern of a meta-op says its kernel needs besides; None where they are not known."""
    factors: str = ""
    """The stored element types of what it multiplies, as "int8 x int8"; empty where it multiplies nothing."""

    @property
    def traffic(self) -> int | None:
        """Bytes of the activations that it reads and writes, each value once; None where one is not known."""
        sizes = {t.name: t.bytes for t in (*self.inputs, *self.outputs) if not t.constant}
        return None if None in sizes.values() else sum(size for size in sizes.values() if size is not None)

    @property
    def intensity(self) -> float | None:
        """Arithmetic intensity: MACs for each byte read or written; None where one of them is not known, or nothing is moved."""
        macs = self.work.total
        if macs is None or self.read is None or self.written is None or not self.read + self.written:
            return None
        return macs / (self.read + self.written)

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON of one node."""
        return {
            "node": self.node,
            "op": self.op,
            "body": self.body,
            "inputs": [tensor.to_dict() for tensor in self.inputs],
            "outputs": [tensor.to_dict() for tensor in self.outputs],
            "macs": self.work.total,
            "factors": self.factors,
            "flops": self.work.operations,
            "bias_additions": sum(self.work.additions.values()),
            "bytes_read": self.read,
            "weight_bytes_read": self.weights,
            "bytes_written": self.written,
            "workspace": self.workspace,
            "traffic": self.traffic,
            "intensity": self.intensity,
            **({"unknown": self.work.unknown} if self.work.unknown else {}),
        }


def layers(
    model: ir.Model, shapes: Shapes, constants: Constants, infer: Callable[[ir.Model], Shapes] = resolve
) -> tuple[LayerCost, ...]:
    """Return every node of the graphs of `model` that computes something, in order; those that only make constants are left out.

    `infer` returns the shapes of a copy in which calls are written out.
    """
    done, needed = works(model, shapes, constants, infer), workspaces(model, shapes)

    def described(value: ir.Value) -> Tensor:
        return tensor(value, shapes, constants)

    return tuple(
        replace(
            _layer(node, name, body, done[node], described),
            workspace=needed.get(node, 0),
            factors=factors(node, model, shapes) if done[node].macs and done[node].total else "",
        )
        for body, graph in _graphs(model.graph)
        for node, name in node_ids(graph).items()
        if not (node.outputs and all(value in constants for value in node.outputs))
    )


def tensor(value: ir.Value, shapes: Shapes, constants: Constants) -> Tensor:
    """Return name, element type, dimensions and bytes of `value`, as far as they are known."""
    dtype = shapes.dtype(value)
    name = None if dtype is None else dtype.name.lower()
    return Tensor(value.name or "", name, shapes.dims(value), tensor_bytes(value, shapes), value in constants)


def _graphs(graph: ir.Graph) -> Iterator[tuple[str, ir.Graph]]:
    """Yield `graph` and all bodies in it, each with the path to it: "If_3.then_branch"."""
    names: dict[ir.Node, str] = {}
    for path, inner in graphs_in(graph):
        names |= node_ids(inner)
        yield "/".join(f"{names[node]}.{key}" for node, key in path), inner


def _layer(node: ir.Node, name: str, body: str, work: NodeWork, described: Callable[[ir.Value], Tensor]) -> LayerCost:
    inputs = tuple(described(value) for value in dict.fromkeys(dependencies(node)))
    outputs = tuple(described(value) for value in node.outputs if value.name)
    written = _sum([one.bytes for one in outputs])
    read, moving = (_read(node, inputs, written, constant) for constant in (True, False))
    weights = None if read is None or moving is None else read - moving
    return LayerCost(name, operator_name(node), body, inputs, outputs, work, read, written, weights)


def _read(node: ir.Node, inputs: tuple[Tensor, ...], written: int | None, constants: bool) -> int | None:
    """Return the bytes that a node reads, of its constants, too, or of all but these."""
    sizes = [one.bytes if constants or not one.constant else 0 for one in inputs]
    if node.domain not in {"", "ai.onnx"}:
        return _sum(sizes)
    if node.op_type in _READS_NOTHING:
        return 0
    if node.op_type in _READS_WHAT_IT_WRITES:
        return _sum([written if constants or not inputs[0].constant else 0, *sizes[1:]])
    return _sum(sizes)


def _sum(sizes: list[int | None]) -> int | None:
    return None if None in sizes else sum(size for size in sizes if size is not None)
