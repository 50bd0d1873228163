"""Small random convolutional nets for the tests of fit's search."""

from __future__ import annotations

import onnx
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn

from tests.fitting.networks import model

LAYERS = ("relu", "stride", "gate", "deep", "pool", "skip", "expand")
"""The kinds of layers; the first example of a property has the first one alone, which is quick to cut."""


class _Net:
    """The text of a net and the shapes of its weights; `value` is its last tensor, of so many channels, rows and columns."""

    def __init__(self, channels: int, rows: int) -> None:
        self.lines: list[str] = []
        self.weights: dict[str, tuple[int, ...]] = {}
        self.channels, self.rows = channels, rows
        self.value = "x"

    def node(self, operator: str, *operands: str) -> str:
        """Add a node of one result, and return the name of this."""
        name = f"t{len(self.lines)}"
        self.lines.append(f"[n{len(self.lines)}] {name} = {operator}({', '.join(operands)})")
        return name

    def conv(self, value: str, into: int, out: int, size: int = 1, stride: int = 1, group: int = 1) -> str:
        """Add a convolution whose padding keeps the size."""
        weight = f"w{len(self.weights)}"
        self.weights[weight] = (out, into // group, size, size)
        pads = [size // 2] * 4
        attributes = f"kernel_shape=[{size},{size}], pads={pads}, strides=[{stride},{stride}], group={group}"
        return self.node(f"Conv<{attributes}>", value, weight)

    def layer(self, kind: str) -> None:
        """Add a layer; one that halves rows is left out where few are left."""
        channels = self.channels
        if kind == "expand":
            wide = self.node("Relu", self.conv(self.value, channels, 4 * channels))
            deep = self.conv(wide, 4 * channels, 4 * channels, 3, group=4 * channels)
            self.value = self.conv(deep, 4 * channels, channels)
        elif kind == "deep":
            self.value = self.conv(self.value, channels, channels, 3, group=channels)
        elif kind == "stride" and self.rows >= 8:
            self.value = self.conv(self.value, channels, channels, 3, stride=2)
            self.rows //= 2
        elif kind == "relu":
            self.value = self.node("Relu", self.value)
        elif kind == "skip":
            self.value = self.node("Add", self.value, self.conv(self.value, channels, channels, 3))
        elif kind == "gate":
            mean = self.node("GlobalAveragePool", self.value)
            self.value = self.node("Mul", self.value, self.node("Sigmoid", self.conv(mean, channels, channels)))
        elif kind == "pool" and self.rows >= 8:
            self.value = self.node("MaxPool<kernel_shape=[2,2], strides=[2,2]>", self.value)
            self.rows //= 2


@st.composite
def nets(draw: DrawFn) -> onnx.ModelProto:
    """Draw a net of up to four layers, with means of the image at its end or without."""
    channels = draw(st.sampled_from([2, 4]))
    size = draw(st.sampled_from([8, 12]))
    net = _Net(channels, size)
    net.value = net.conv("x", 2, channels, 3)
    for kind in draw(st.lists(st.sampled_from(LAYERS), min_size=2, max_size=4)):
        net.layer(kind)
    rows = net.rows
    if draw(st.booleans()):
        net.value, rows = net.node("GlobalAveragePool", net.value), 1
    dims = f"float[1,2,{size},{size}] x) => (float[1,{channels},{rows},{rows}] {net.value}"
    return model(f"g ({dims}) {{ {' '.join(net.lines)} }}", **net.weights)
