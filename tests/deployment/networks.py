"""TensorFlow Lite models made for tests: random networks of float operators with random weights."""

from __future__ import annotations

import random
from typing import Any

import flatbuffers
import numpy as np
import pytest

MICRO = pytest.importorskip("tflite_micro", reason="the extra tflite-micro is not installed")
SCHEMA = pytest.importorskip("tflite_micro.tensorflow.lite.micro.python.schema_py_generated")

_SIDE, _DEPTH = 6, 4


class Network:
    """A model in the making: each method adds an operator and returns the index of its result."""

    def __init__(self, seed: int = 0) -> None:
        self._random = np.random.default_rng(seed)
        self.tensors: list[Any] = []
        self.operators: list[Any] = []
        self.codes: list[int] = []
        self.buffers: list[Any] = [SCHEMA.BufferT()]
        self.inputs = [self.tensor((1, _SIDE, _SIDE, _DEPTH))]

    def tensor(self, shape: tuple[int, ...], data: Any = None) -> int:
        """Add a tensor; with `data` it is a constant."""
        tensor = SCHEMA.TensorT()
        tensor.shape, tensor.name, tensor.buffer = list(shape), f"t{len(self.tensors)}", 0
        tensor.type = SCHEMA.TensorType.FLOAT32
        if data is not None:
            buffer = SCHEMA.BufferT()
            buffer.data = np.frombuffer(data.tobytes(), np.uint8)
            tensor.buffer, tensor.type = len(self.buffers), _TYPES[data.dtype.name]
            self.buffers.append(buffer)
        self.tensors.append(tensor)
        return len(self.tensors) - 1

    def weights(self, *shape: int) -> int:
        """Add a constant of random numbers."""
        return self.tensor(shape, self._random.standard_normal(shape).astype(np.float32) / 4)

    def add(self, name: str, inputs: list[int], shape: tuple[int, ...], options: Any = None) -> int:
        """Add the operator `name`, with a result of `shape`."""
        code = getattr(SCHEMA.BuiltinOperator, name)
        if code not in self.codes:
            self.codes.append(code)
        operator, result = SCHEMA.OperatorT(), self.tensor(shape)
        operator.opcodeIndex, operator.inputs, operator.outputs = self.codes.index(code), inputs, [result]
        if options is not None:
            operator.builtinOptionsType = getattr(SCHEMA.BuiltinOptions, type(options).__name__.removesuffix("T"))
            operator.builtinOptions = options
        self.operators.append(operator)
        return result

    def shape(self, index: int) -> tuple[int, ...]:
        """Return the shape of a tensor."""
        return tuple(self.tensors[index].shape)

    def conv(self, x: int) -> int:
        """Add a convolution with kernels of 1×1."""
        depth, options = self.shape(x)[-1], SCHEMA.Conv2DOptionsT()
        options.strideW = options.strideH = 1
        inputs = [x, self.weights(_DEPTH, 1, 1, depth), self.weights(_DEPTH)]
        return self.add("CONV_2D", inputs, (1, _SIDE, _SIDE, _DEPTH), options)

    def joined(self, a: int, b: int) -> int:
        """Add a concatenation of the last axis."""
        options = SCHEMA.ConcatenationOptionsT()
        options.axis = 3
        depth = self.shape(a)[-1] + self.shape(b)[-1]
        return self.add("CONCATENATION", [a, b], (1, _SIDE, _SIDE, depth), options)

    def reshaped(self, x: int, shape: tuple[int, ...]) -> int:
        """Add a reshape."""
        return self.add("RESHAPE", [x, self.tensor((len(shape),), np.array(shape, np.int32))], shape)

    def bytes(self, outputs: list[int]) -> bytes:
        """Return the file of the model."""
        model, graph = SCHEMA.ModelT(), SCHEMA.SubGraphT()
        graph.tensors, graph.operators = self.tensors, self.operators
        graph.inputs, graph.outputs = self.inputs, outputs
        model.version, model.subgraphs, model.buffers, model.description = 3, [graph], self.buffers, "made for a test"
        model.operatorCodes = [_code(code) for code in self.codes]
        builder = flatbuffers.Builder(1024)
        builder.Finish(model.Pack(builder), b"TFL3")
        return bytes(builder.Output())


_TYPES = {"float32": SCHEMA.TensorType.FLOAT32, "int32": SCHEMA.TensorType.INT32}


def _code(number: int) -> Any:
    code = SCHEMA.OperatorCodeT()
    code.builtinCode, code.deprecatedBuiltinCode, code.version = number, min(number, 127), 1
    return code


def network(seed: int, operators: int = 14) -> bytes:
    """Return a random network, the same for each `seed`."""
    choose, net = random.Random(seed), Network(seed)
    made = [net.conv(net.inputs[0])]
    for _ in range(operators):
        x = choose.choice(made[-3:])
        same = [other for other in made if net.shape(other) == net.shape(x)]
        images = [other for other in made if len(net.shape(other)) == 4]
        kind = choose.choice(["ADD", "MUL", "RELU", "LOGISTIC", "TANH", "CONV", "CONCAT", "RESHAPE"])
        if kind in {"ADD", "MUL"}:
            options = getattr(SCHEMA, f"{kind.title()}OptionsT")()
            made.append(net.add(kind, [x, choose.choice(same)], net.shape(x), options))
        elif kind in {"RELU", "LOGISTIC", "TANH"}:
            made.append(net.add(kind, [x], net.shape(x)))
        elif kind == "RESHAPE":
            size = int(np.prod(net.shape(x)))
            flat = len(net.shape(x)) == 2
            made.append(net.reshaped(x, (1, _SIDE, _SIDE, size // _SIDE**2) if flat else (1, size)))
        elif kind == "CONV":
            made.append(net.conv(choose.choice(images)))
        else:
            made.append(net.joined(choose.choice(images), choose.choice(images)))
    return net.bytes([made[-1]])
