"""MobileNetV2 as its paper has it (Sandler et al., 2018, table 2), with weights that take no room: ConstantOfShape nodes.

Batch normalisation is folded into the convolutions, ReLU6 is a Clip node. Run it with the name of the file to write.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

# t, c, n, s of the paper: expansion, channels, repetitions, stride of the first.
BLOCKS = ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1))


class _Network:
    """Nodes and constants in the order in which they are made; each method returns the name of what it makes."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.initializers = [
            numpy_helper.from_array(np.asarray(0, np.float32), "zero"),
            numpy_helper.from_array(np.asarray(6, np.float32), "six"),
        ]

    def add(self, op: str, *inputs: str, **attributes: Any) -> str:
        """Add a node, named as its output."""
        name = f"{op.lower()}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, inputs, [name], name=name, **attributes))
        return name

    def constant(self, *shape: int) -> str:
        """Add a weight of this shape that is all alike."""
        name = f"shape_{len(self.initializers)}"
        self.initializers.append(numpy_helper.from_array(np.asarray(shape, np.int64), name))
        value = helper.make_tensor("value", TensorProto.FLOAT, [1], [1 / 64])
        return self.add("ConstantOfShape", name, value=value)

    def conv(self, x: str, into: int, out: int, kernel: int = 1, stride: int = 1, group: int = 1) -> str:
        """Add a convolution with a bias."""
        weight, bias = self.constant(out, into // group, kernel, kernel), self.constant(out)
        half = kernel // 2
        shape = {"kernel_shape": [kernel] * 2, "pads": [half] * 4, "strides": [stride] * 2, "group": group}
        return self.add("Conv", x, weight, bias, **shape)

    def clip(self, x: str) -> str:
        """Add a ReLU6."""
        return self.add("Clip", x, "zero", "six")

    def block(self, x: str, into: int, out: int, expansion: int, stride: int) -> str:
        """Add an inverted residual: expansion, depthwise convolution, linear projection."""
        wide = into * expansion
        inner = self.clip(self.conv(x, into, wide)) if expansion > 1 else x
        inner = self.clip(self.conv(inner, wide, wide, kernel=3, stride=stride, group=wide))
        inner = self.conv(inner, wide, out)
        return self.add("Add", x, inner) if stride == 1 and into == out else inner


def mobilenet_v2(size: int = 224, classes: int = 1000) -> onnx.ModelProto:
    """Return the network for images of `size` × `size` pixels; its batch is the dimension "batch"."""
    network = _Network()
    x, channels = network.clip(network.conv("image", 3, 32, kernel=3, stride=2)), 32
    for expansion, out, times, first in BLOCKS:
        for place in range(times):
            x = network.block(x, channels, out, expansion, first if place == 0 else 1)
            channels = out
    x = network.clip(network.conv(x, channels, 1280))
    x = network.add("Flatten", network.add("GlobalAveragePool", x))
    weight, bias = network.constant(1280, classes), network.constant(classes)
    network.nodes.append(helper.make_node("Gemm", [x, weight, bias], ["logits"], name="classifier"))
    graph = helper.make_graph(
        network.nodes,
        "mobilenet_v2",
        [helper.make_tensor_value_info("image", TensorProto.FLOAT, ["batch", 3, size, size])],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", classes])],
        network.initializers,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)


if __name__ == "__main__":
    target = Path(sys.argv[1])
    onnx.save(mobilenet_v2(), target)
    print(f"{target}: {target.stat().st_size:,} bytes")
