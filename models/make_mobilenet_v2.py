"""MobileNetV2 as its paper has it (Sandler et al., 2018, table 2), with weights that are all alike, or random from a fixed seed.

Batch normalisation is folded into the convolutions, ReLU6 is a Clip node. Weights that are all alike are ConstantOfShape nodes, so that
the file is small.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

# t, c, n, s of the paper: expansion, channels, repetitions, stride of the first.
BLOCKS = ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1))


class Network:
    """Nodes and constants in the order in which they are made; each method returns the name of what it makes."""

    def __init__(self, random: np.random.Generator | None) -> None:
        self.random = random
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
        """Add a weight of this shape: random numbers that keep the range of activations, or numbers that are all alike."""
        if self.random is not None:
            name = f"weight_{len(self.initializers)}"
            scale = np.sqrt(2 / max(1, int(np.prod(shape[1:]))))
            array = (self.random.standard_normal(shape) * scale).astype(np.float32)
            self.initializers.append(numpy_helper.from_array(array, name))
            return name
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


def mobilenet_v2(
    size: int = 224, classes: int = 1000, *, width: float = 1.0, seed: int | None = None
) -> onnx.ModelProto:
    """Return the network for images of `size` × `size` pixels; its batch is the dimension "batch".

    `width` multiplies the channels of each layer, of the last one only where it is above 1. With a `seed` the weights are random.
    """
    network = Network(None if seed is None else np.random.default_rng(seed))
    channels = _rounded(32 * width)
    x = network.clip(network.conv("image", 3, channels, kernel=3, stride=2))
    for expansion, out, times, first in BLOCKS:
        for place in range(times):
            x = network.block(x, channels, _rounded(out * width), expansion, first if place == 0 else 1)
            channels = _rounded(out * width)
    last = _rounded(1280 * max(1.0, width))
    x = network.clip(network.conv(x, channels, last))
    x = network.add("Flatten", network.add("GlobalAveragePool", x))
    weight, bias = network.constant(last, classes), network.constant(classes)
    network.nodes.append(helper.make_node("Gemm", [x, weight, bias], ["logits"], name="classifier"))
    graph = helper.make_graph(
        network.nodes,
        "mobilenet_v2",
        [helper.make_tensor_value_info("image", TensorProto.FLOAT, ["batch", 3, size, size])],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", classes])],
        network.initializers,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)


def _rounded(channels: float) -> int:
    """Return the nearest multiple of 8, which is at least 8 and not more than a tenth below `channels`."""
    nearest = max(8, int(channels + 4) // 8 * 8)
    return nearest + 8 if nearest < 0.9 * channels else nearest


def main() -> None:
    """Read the command line and write the model."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--size", type=int, default=224, help="rows and columns of the image")
    parser.add_argument("--width", type=float, default=1.0, help="factor of the channels of each layer")
    parser.add_argument("--seed", type=int, help="make random weights")
    options = parser.parse_args()
    onnx.save(mobilenet_v2(options.size, width=options.width, seed=options.seed), options.out)
    print(f"{options.out}: {options.out.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
