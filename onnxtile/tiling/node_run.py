"""Runs a node, or the tiles that replace it, outside its model; constants are fed, so that no weight is copied into a file."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import onnx
import onnx_ir as ir

from onnxtile.errors import ModelError
from onnxtile.model.submodel import assembled, bare_node, tensor_type
from onnxtile.runtime import Array, Session
from onnxtile.tiling.contraction import Contraction
from onnxtile.tiling.element_types import HALVES
from onnxtile.tiling.result import TiledNode

_PART = 500
"""Nodes in one session. onnxruntime loads n nodes that read n inputs in about n² steps: 9,283 nodes of AlexNet took 5.1 s in one
piece, 0.9 s in pieces of 1,000, 0.7 s in pieces of 500 or less."""


@dataclass(frozen=True)
class _NodeSession:
    """Consecutive nodes in a session of their own, and the constants among their inputs."""

    session: Session
    constants: tuple[ir.Value, ...] = ()
    sums: tuple[ir.Node, ...] = ()
    """Its Sums of 16 bits."""

    def run(self, trials: Iterable[dict[str, Array]]) -> None:
        """Add the results of these nodes to the values of each trial. The blocks of constants are cut once for all of them."""
        held = {name_of(value): np.asarray(held_by(value), order="C") for value in self.constants}
        names = [feed.name for feed in self.session.inputs]
        for known in trials:
            known.update(self.session.run({name: held[name] if name in held else known[name] for name in names}))
            for node in self.sums:
                name = name_of(node.outputs[0])
                known[name] = _in_range(known[name], [known[name_of(value)] for value in _inputs([node])])


@dataclass(frozen=True)
class NodeRun:
    """A part of the model that makes `output`: the same nodes in the same order, in as many sessions as load fast."""

    parts: tuple[_NodeSession, ...]
    output: str

    @classmethod
    def of_original(cls, site: TiledNode, opset: int) -> NodeRun:
        """Return the nodes as they were. Raises ModelError where onnxruntime has no kernel for one."""
        inputs = {name: tensor_type(dtype, dims) for name, (_, dtype, dims) in outer_values(site.contraction).items()}
        output = site.originals[-1].output[0]
        return cls((_NodeSession(_session(assembled(site.originals, inputs, [output], _opsets(opset)))),), output)

    @classmethod
    def of_tiles(cls, site: TiledNode, opset: int) -> NodeRun:
        """Return the tiles that replace the node. Raises ModelError where onnxruntime has no kernel for one.

        With 16 bits, no node is in one session with a node that it reads: onnxruntime computes in float32, and would not round or
        overflow between the two, as hardware does that keeps each tensor in the type that the model says.
        """
        levels = _levels(site.emitted) if site.contraction.dtype in HALVES else [list(site.emitted)]
        runs = [level[start : start + _PART] for level in levels for start in range(0, len(level), _PART)]
        cutter = _Cutter(site, opset, runs)
        parts = tuple(cutter.part(at) for at in range(len(runs)))
        return cls(parts, name_of(site.emitted[-1].outputs[0]))

    def run(self, trials: Iterable[Mapping[str, Array]]) -> list[Array]:
        """Return the output of each trial, which holds the operands, also those that this part does not read."""
        known = [dict(feeds) for feeds in trials]
        for part in self.parts:
            part.run(known)
        return [found[self.output] for found in known]


@dataclass
class _Cutter:
    """Makes sessions of the nodes of a site; a value that a later session reads is an output of the one that makes it."""

    site: TiledNode
    opset: int
    runs: Sequence[Sequence[ir.Node]]
    """The nodes of each part."""
    _last_read: dict[ir.Value, int] = field(default_factory=dict)
    _made: set[ir.Value] = field(default_factory=set)

    def __post_init__(self) -> None:
        nodes = self.site.emitted
        self._last_read = {value: at for at, run in enumerate(self.runs) for value in _inputs(run)}
        self._last_read[nodes[-1].outputs[0]] = len(self.runs)
        self._made = {value for node in nodes for value in node.outputs}
        self._outer = outer_values(self.site.contraction)
        # The sizes for Split and Slice are initializers, as hardware compilers need.
        self._sizes = {
            value
            for node in nodes
            if node.op_type in {"Split", "Slice"}
            for value in node.inputs[1:]
            if value is not None
        }

    def part(self, at: int) -> _NodeSession:
        """Return part number `at`."""
        nodes = self.runs[at]
        made = [value for node in nodes for value in node.outputs]
        read = dict.fromkeys(_inputs(nodes))
        sizes = [value for value in read if value in self._sizes]
        own = {*made, *sizes}
        fed = [value for value in read if value not in own]
        # By name where it comes from outside: the value itself may be gone from the model, or its name passed on.
        blocks = [v for v in fed if v not in self._made and v.name not in self._outer]
        leaving = [value for value in made if self._last_read.get(value, -1) > at]
        session = _session(
            assembled(
                (bare_node(node) for node in nodes),
                {name_of(value): self._type(value) for value in fed},
                [name_of(value) for value in leaving],
                _opsets(self.opset),
                constants=[onnx.numpy_helper.from_array(held_by(value), value.name) for value in sizes],
            )
        )
        sums = [node for node in nodes if node.op_type == "Sum" and node.outputs[0].dtype in HALVES]
        return _NodeSession(session, tuple(blocks), tuple(sums))

    def _type(self, value: ir.Value) -> onnx.TypeProto:
        dtype = value.dtype or self.site.contraction.dtype
        if value in self._made:
            return tensor_type(dtype, None)
        if value.name in self._outer:
            return tensor_type(*self._outer[value.name][1:])
        return tensor_type(dtype, held_by(value).shape)


def outer_values(contraction: Contraction) -> dict[str, tuple[ir.Value, ir.DataType, tuple[int, ...]]]:
    """Return operands, bias and scales by name, with their type and dimensions in the model, symbols replaced by a number.

    An axis along which windows slide gets three times the elements that the kernel reaches over.
    """
    outer = [(o.value, *o.held) for o in contraction.operands]
    if contraction.bias is not None:
        outer.append((contraction.bias.value, contraction.dtype, contraction.bias.dims))
    if contraction.requantize is not None:
        outer += [(p.value, p.dtype, p.dims) for p in contraction.requantize.parameters]
    outer += [(p.value, p.dtype, p.dims) for p in contraction.read]
    size, windows = _free_size(contraction), _window_sizes(contraction)
    free = [windows if value is contraction.left.value else {} for value, _, _ in outer]
    return {
        name_of(value): (
            value,
            dtype,
            tuple(dim if isinstance(dim, int) else sizes.get(axis, size) for axis, dim in enumerate(dims)),
        )
        for (value, dtype, dims), sizes in zip(outer, free, strict=True)
    }


def _window_sizes(contraction: Contraction) -> dict[int | None, int]:
    """Return for each axis of the left operand along which windows slide a size to run with where none is known."""
    pairs = zip(contraction.left_axes, contraction.sliding, strict=True)
    return {axis: 3 * sliding.reach for axis, sliding in pairs} if contraction.windows else {}


def _free_size(contraction: Contraction) -> int:
    """Return the size for any other axis that is known only when the model runs: that which it meets in the other batch, else 3.

    It is the same for all symbols, so that those which must be equal are; 1, which broadcasts to any, where it meets several.
    """
    left, right, _ = contraction.batches
    pairs = list(zip(left[::-1], right[::-1], strict=False))
    met = {b for a, b in (*pairs, *((b, a) for a, b in pairs)) if not isinstance(a, int) and isinstance(b, int)} - {1}
    return (met.pop() if met else 3) if len(met) < 2 else 1


def held_by(value: ir.Value) -> Array:
    """Return the elements of an initializer."""
    assert value.const_value is not None
    return value.const_value.numpy()


def name_of(value: ir.Value) -> str:
    """Return the name of a value, which every value of a tiled model has."""
    assert value.name is not None
    return value.name


def _levels(nodes: Sequence[ir.Node]) -> list[list[ir.Node]]:
    """Return `nodes` in groups, each node as early as possible; no node of a group reads another one of it."""
    level: dict[ir.Node | None, int] = {}
    groups: list[list[ir.Node]] = []
    for node in nodes:
        level[node] = max((level.get(value.producer(), -1) for value in _inputs([node])), default=-1) + 1
        groups += [[]] if level[node] == len(groups) else []
        groups[level[node]].append(node)
    return groups


def _in_range(total: Array, terms: Sequence[Array]) -> Array:
    """Return a Sum of 16 bits, rounded once; where adding term after term leaves the range, the result of that."""
    with np.errstate(over="ignore", invalid="ignore"):
        running = terms[0]
        for term in terms[1:]:
            running = running + term
    return np.where(np.isfinite(running), total, running)


def _inputs(nodes: Iterable[ir.Node]) -> list[ir.Value]:
    return [value for node in nodes for value in node.inputs if value is not None]


def _session(model: onnx.ModelProto) -> Session:
    try:
        return Session(model.SerializeToString())
    except ModelError as error:
        raise ModelError(str(error), hint="to tile without running, use --no-verify") from None


def _opsets(opset: int) -> dict[str, int]:
    return {"": opset, "com.microsoft": 1}
