"""Graphs of any number of nodes, in the shapes that make work grow: chains, a wide graph, a ladder, blocks of nets, calls of functions.

Each maker takes the number of nodes and returns a model that onnxruntime runs; the tensors are small, so that the graph is what costs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

WIDTH = 8
"""Elements of a row of each tensor."""
TOKENS = 4
"""Rows of each tensor of a transformer."""


class _Graph:
    """Nodes and weights that are added one by one; each node gets the next number as its name."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []

    def weight(self, array: np.ndarray) -> str:
        name = f"w{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(array, name))
        return name

    def node(self, op_type: str, *inputs: str, **attributes: Any) -> str:
        name = f"v{len(self.nodes)}"
        self.nodes.append(helper.make_node(op_type, inputs, [name], f"n{len(self.nodes)}", **attributes))
        return name

    def model(
        self, dims: list[int], output: str, *functions: onnx.FunctionProto, domains: Sequence[str] = ()
    ) -> onnx.ModelProto:
        """Return the model from the input `x` of shape `dims` to `output` of the same shape, with local functions in `domains`."""
        last = self.node("Identity", output)
        x, y = (helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, dims) for name in ("x", last))
        graph = helper.make_graph(self.nodes, "large", [x], [y], self.weights)
        return helper.make_model(graph, opset_imports=_opsets(*domains), ir_version=8, functions=functions)


def _opsets(*domains: str) -> list[onnx.OperatorSetIdProto]:
    return [helper.make_opsetid("", 17), *(helper.make_opsetid(domain, 1) for domain in domains)]


def chain(size: int) -> onnx.ModelProto:
    """Return a model of `size` nodes, one after the other."""
    graph, value = _Graph(), "x"
    bias = graph.weight(np.full(WIDTH, 0.01, np.float32))
    while len(graph.nodes) < size - 1:
        value = graph.node("Add", value, bias) if len(graph.nodes) % 2 else graph.node("Tanh", value)
    return graph.model([TOKENS, WIDTH], value)


def wide(size: int) -> onnx.ModelProto:
    """Return a model of about `size` nodes in branches of three, all from the input and all to one Sum."""
    graph = _Graph()
    branches = []
    while len(graph.nodes) < size - 2:
        branches.append(graph.node("Tanh", graph.node("Neg", graph.node("Relu", "x"))))
    return graph.model([TOKENS, WIDTH], graph.node("Sum", *branches))


def streams(size: int) -> onnx.ModelProto:
    """Return a model of about `size` nodes in sixteen chains side by side, joined by one Sum."""
    graph = _Graph()
    ends = ["x"] * 16
    while len(graph.nodes) < size - 2:
        place = len(graph.nodes) % 16
        ends[place] = graph.node("Tanh", ends[place])
    return graph.model([TOKENS, WIDTH], graph.node("Sum", *ends))


def ladder(size: int) -> onnx.ModelProto:
    """Return a model of about `size` nodes of which the outer halves read each other: the first result is read last."""
    graph, value = _Graph(), "x"
    held = []
    while len(graph.nodes) < size // 2:
        value = graph.node("Tanh", value)
        held.append(value)
    while held:
        value = graph.node("Add", value, held.pop())
    return graph.model([TOKENS, WIDTH], value)


def transformer(size: int) -> onnx.ModelProto:
    """Return a model of about `size` nodes: blocks of attention and two layers, with layer norms and GELUs spelled out."""
    graph = _Graph()
    constants = {name: graph.weight(np.array(number, np.float32)) for name, number in _NUMBERS.items()}
    constants["heads"] = graph.weight(np.array([1, TOKENS, 2, WIDTH // 2], np.int64))
    constants["flat"] = graph.weight(np.array([1, TOKENS, WIDTH], np.int64))
    random = np.random.default_rng(0)
    value = "x"
    while len(graph.nodes) < size:
        value = _block(graph, value, constants, random)
    return graph.model([1, TOKENS, WIDTH], value)


def convolutions(size: int) -> onnx.ModelProto:
    """Return a model of about `size` nodes: residual blocks of Conv, BatchNormalization and Relu."""
    graph, random = _Graph(), np.random.default_rng(0)
    channels = 8
    ones, zeros = graph.weight(np.ones(channels, np.float32)), graph.weight(np.zeros(channels, np.float32))
    value = "x"
    while len(graph.nodes) < size:
        inner = value
        for _ in range(2):
            kernel = graph.weight(random.normal(0, 0.1, (channels, channels, 1, 1)).astype(np.float32))
            conv = graph.node("Conv", inner, kernel, kernel_shape=[1, 1])
            inner = graph.node("Relu", graph.node("BatchNormalization", conv, ones, zeros, zeros, ones))
        value = graph.node("Tanh", graph.node("Add", value, inner))
    return graph.model([1, channels, 4, 4], value)


def functions(size: int) -> onnx.ModelProto:
    """Return a model of about `size` nodes once inlined: twenty calls of each function, which calls another."""
    graph, value, domain = _Graph(), "x", "large"
    square, half = (graph.weight(np.full(dims, 0.5, np.float32)) for dims in ((WIDTH, WIDTH), (WIDTH,)))
    while len(graph.nodes) < size // 5:
        value = graph.node(f"Block{len(graph.nodes) // 20}", value, square, half, domain=domain)
    scaled = [helper.make_node("Mul", ["a", "half"], ["b"]), helper.make_node("Tanh", ["b"], ["c"])]
    block = [
        helper.make_node("MatMul", ["a", "square"], ["b"]),
        helper.make_node("Scaled", ["b", "half"], ["c"], domain=domain),
        helper.make_node("Add", ["a", "c"], ["d"]),
    ]
    made = [helper.make_function(domain, "Scaled", ["a", "half"], ["c"], scaled, _opsets())]
    names, read = dict.fromkeys(node.op_type for node in graph.nodes), ["a", "square", "half"]
    made += [helper.make_function(domain, name, read, ["d"], block, _opsets(domain)) for name in names]
    return graph.model([TOKENS, WIDTH], value, *made, domains=[domain])


_NUMBERS = {"two": 2.0, "eps": 1e-5, "root": 1.41421356, "half": 0.5, "one": 1.0, "scale": 2.0}


def _block(graph: _Graph, x: str, constants: dict[str, str], random: np.random.Generator) -> str:
    def weight(*shape: int) -> str:
        return graph.weight(random.normal(0, 0.1, shape).astype(np.float32))

    def linear(value: str) -> str:
        return graph.node("Add", weight(WIDTH), graph.node("MatMul", value, weight(WIDTH, WIDTH)))

    def norm(value: str) -> str:
        centred = graph.node("Sub", value, graph.node("ReduceMean", value, axes=[-1]))
        variance = graph.node("ReduceMean", graph.node("Pow", centred, constants["two"]), axes=[-1])
        spread = graph.node("Sqrt", graph.node("Add", variance, constants["eps"]))
        return graph.node("Add", graph.node("Mul", graph.node("Div", centred, spread), weight(WIDTH)), weight(WIDTH))

    def heads(value: str) -> str:
        return graph.node("Transpose", graph.node("Reshape", linear(value), constants["heads"]), perm=[0, 2, 1, 3])

    h = norm(x)
    q, k, v = heads(h), heads(h), heads(h)
    turned = graph.node("Transpose", k, perm=[0, 1, 3, 2])
    scores = graph.node("Div", graph.node("MatMul", q, turned), constants["scale"])
    mixed = graph.node("MatMul", graph.node("Softmax", scores, axis=-1), v)
    joined = graph.node("Reshape", graph.node("Transpose", mixed, perm=[0, 2, 1, 3]), constants["flat"])
    x = graph.node("Add", x, linear(joined))
    h = linear(norm(x))
    gate = graph.node("Add", graph.node("Erf", graph.node("Div", h, constants["root"])), constants["one"])
    gelu = graph.node("Mul", graph.node("Mul", h, gate), constants["half"])
    return graph.node("Add", x, linear(gelu))


MAKERS: dict[str, Callable[[int], onnx.ModelProto]] = {
    made.__name__: made for made in (chain, wide, streams, ladder, transformer, convolutions, functions)
}
"""The makers by name."""
