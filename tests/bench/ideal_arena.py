"""The arena that a quantised model needs at least in its own order, computed apart from onnxtile: live bytes of stored tensors.

    python tests/bench/ideal_arena.py MODEL [--shape INPUT=1x3x224x224 ...]

Stored are tensors that one operator hands to another. A DequantizeLinear stores nothing: its readers read the quantised tensor. A result
that only QuantizeLinear nodes read is stored as these write it. Reshape, Flatten, Squeeze, Unsqueeze and Identity store nothing unless the
scales differ. Inputs of the graph lie elsewhere; outputs are kept to the end. No tensor is written over another. Sizes are rounded up to 64
bytes. The model is run once for the shapes.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import onnx
import onnxruntime

ALIGNMENT = 64
VIEWS = {"Reshape", "Flatten", "Squeeze", "Unsqueeze", "Identity"}


@dataclass
class Wires:
    """Who makes and who reads each tensor of a graph, and the bytes of each."""

    graph: onnx.GraphProto
    sizes: dict[str, int]
    makers: dict[str, onnx.NodeProto] = field(default_factory=dict)
    readers: dict[str, list[onnx.NodeProto]] = field(default_factory=lambda: defaultdict(list))
    constants: dict[str, bytes] = field(default_factory=dict)
    outputs: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.outputs = {one.name for one in self.graph.output}
        self.constants = {one.name: one.SerializeToString() for one in self.graph.initializer}
        for node in self.graph.node:
            self.makers.update((name, node) for name in node.output)
            for name in node.input:
                self.readers[name].append(node)
            if all(name in self.constants or not name for name in node.input):
                self.constants.update((name, b"") for name in node.output)

    def scales(self, node: onnx.NodeProto) -> list[tuple[int, bytes]]:
        """Return scale and zero point of a QuantizeLinear or DequantizeLinear."""
        tensors = {one.name: one for one in self.graph.initializer}
        return [
            (tensors[name].data_type, onnx.numpy_helper.to_array(tensors[name]).tobytes())
            for name in node.input[1:]
            if name in tensors
        ]


def stored(name: str, wires: Wires) -> list[str]:
    """Return the tensors that hold what is read as `name`."""
    node = wires.makers.get(name)
    if node is None or name in wires.constants or name in wires.outputs:
        return [name]
    if node.op_type == "DequantizeLinear":
        return stored(node.input[0], wires)
    if node.op_type in VIEWS:
        return stored(node.input[0], wires)
    if node.op_type == "QuantizeLinear":
        inner = wires.makers.get(node.input[0])
        if inner is not None and inner.op_type in VIEWS:
            outer = wires.makers.get(inner.input[0])
            if outer is not None and outer.op_type == "DequantizeLinear" and wires.scales(outer) == wires.scales(node):
                return stored(outer.input[0], wires)
    return [name]


def made(node: onnx.NodeProto, wires: Wires) -> list[str]:
    """Return the tensors that `node` stores: what it makes, or what only QuantizeLinear nodes make of that."""
    found = []
    for name in node.output:
        readers = wires.readers[name]
        if (
            readers
            and name not in wires.outputs
            and all(one.op_type == "QuantizeLinear" and one.input[0] == name for one in readers)
        ):
            found += [one.output[0] for one in readers]
        elif name:
            found.append(name)
    return found


def ideal(model: onnx.ModelProto, sizes: dict[str, int]) -> int:
    """Return the largest sum of live bytes at any node of `model`, whose tensors take `sizes` bytes."""
    wires = Wires(model.graph, sizes)
    given = {one.name for one in model.graph.input} | wires.constants.keys()
    first: dict[str, int] = {}
    last: dict[str, int] = {}
    for step, node in enumerate(model.graph.node):
        if node.op_type == "DequantizeLinear" and not wires.outputs & set(node.output):
            continue
        for name in node.input:
            for held in stored(name, wires) if name not in given else ():
                last[held] = max(last.get(held, 0), step)
        for name in made(node, wires):
            for held in stored(name, wires):
                if held not in given:
                    first.setdefault(held, step)
                    last[held] = max(last.get(held, 0), step)
    last.update(
        {held: len(model.graph.node) for name in wires.outputs for held in stored(name, wires) if held in first}
    )
    changes = [0] * (len(model.graph.node) + 2)
    for name, start in first.items():
        size = -(-sizes.get(name, 0) // ALIGNMENT) * ALIGNMENT
        changes[start] += size
        changes[last[name] + 1] -= size
    return int(max(np.cumsum(changes), default=0))


def tensor_sizes(model: onnx.ModelProto, shapes: dict[str, list[int]]) -> dict[str, int]:
    """Return the bytes of every tensor that a node makes, seen in a run on zeros."""
    inner = onnx.ModelProto()
    inner.CopyFrom(model)
    del inner.graph.output[:]
    for node in inner.graph.node:
        inner.graph.output.extend(onnx.ValueInfoProto(name=name) for name in node.output if name)
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(inner.SerializeToString(), options, providers=["CPUExecutionProvider"])
    feeds: dict[str, np.ndarray] = {}
    for one in session.get_inputs():
        dtype = {"tensor(float)": np.float32, "tensor(int64)": np.int64, "tensor(bool)": np.bool_}[one.type]
        feeds[one.name] = np.zeros(shapes.get(one.name, [s if isinstance(s, int) else 1 for s in one.shape]), dtype)
    names = [one.name for one in session.get_outputs()]
    return {name: np.asarray(value).nbytes for name, value in zip(names, session.run(names, feeds), strict=True)}


def main() -> None:
    """Print the ideal arena of the model that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("--shape", action="append", default=[], metavar="INPUT=DIMS")
    options = parser.parse_args()
    shapes = {name: [int(d) for d in dims.split("x")] for name, dims in (one.split("=") for one in options.shape)}
    model = onnx.load(options.model)
    print(ideal(model, tensor_sizes(model, shapes)))


if __name__ == "__main__":
    main()
