"""Parameters of GoogLeNet with batch normalisation, as torchvision builds it: those of all kinds, and those that can be trained."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper, parser

from onnxtile import api
from tests.build import parsed

BLOCKS = (
    ((64, 96, 128, 16, 32, 32), (128, 128, 192, 32, 96, 64)),
    (
        *((192, 96, 208, 16, 48, 64), (160, 112, 224, 24, 64, 64), (128, 128, 256, 24, 64, 64)),
        *((112, 144, 288, 32, 64, 64), (256, 160, 320, 32, 128, 128)),
    ),
    ((256, 160, 320, 32, 128, 128), (384, 192, 384, 48, 128, 128)),
)
"""Channels of each block: 1×1; 3×3 and the 1×1 before it; the second 3×3 and the 1×1 before it; the 1×1 after the pool."""


class Network:
    """A network that grows: every convolution has no bias, and a batch normalisation behind it."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []

    def weight(self, *sizes: int) -> str:
        self.weights.append(numpy_helper.from_array(np.zeros(sizes, np.float32), f"w{len(self.weights)}"))
        return self.weights[-1].name

    def node(self, op: str, *inputs: str, **attributes: Any) -> str:
        self.nodes.append(helper.make_node(op, inputs, [f"v{len(self.nodes)}"], **attributes))
        return str(self.nodes[-1].output[0])

    def conv(self, value: str, before: int, after: int, kernel: int = 1, stride: int = 1) -> str:
        steps = {"strides": [stride] * 2, "pads": [kernel // 2] * 4}
        made = self.node("Conv", value, self.weight(after, before, kernel, kernel), **steps)
        return self.node("Relu", self.node("BatchNormalization", made, *(self.weight(after) for _ in range(4))))

    def pool(self, value: str, stride: int) -> str:
        return self.node("MaxPool", value, kernel_shape=[3, 3], strides=[stride] * 2, pads=[1] * 4)

    def block(self, value: str, before: int, channels: tuple[int, ...]) -> str:
        alone, first, three, second, five, pooled = channels
        branches = (
            self.conv(value, before, alone),
            self.conv(self.conv(value, before, first), first, three, 3),
            self.conv(self.conv(value, before, second), second, five, 3),
            self.conv(self.pool(value, 1), before, pooled),
        )
        return self.node("Concat", *branches, axis=1)


@pytest.fixture(name="googlenet", scope="module")
def _googlenet() -> onnx.ModelProto:
    net = Network()
    value = net.pool(net.conv("image", 3, 64, 7, 2), 2)
    value = net.conv(net.conv(value, 64, 64), 64, 192, 3)
    channels = 192
    for stage in BLOCKS:
        value = net.pool(value, 2)
        for one in stage:
            value, channels = net.block(value, channels, one), one[0] + one[2] + one[4] + one[5]
    value = net.node("Flatten", net.node("GlobalAveragePool", value))
    last = net.node("Gemm", value, net.weight(1000, channels), net.weight(1000), transB=1)
    image, scores = (
        helper.make_tensor_value_info(name, TensorProto.FLOAT, sizes)
        for name, sizes in (("image", [1, 3, 224, 224]), (last, [1, 1000]))
    )
    graph = helper.make_graph(net.nodes, "googlenet", [image], [scores], net.weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def test_googlenet_has_the_parameters_of_torchvision(googlenet: onnx.ModelProto) -> None:
    """6,624,904 are those that torchvision publishes; means and variances of 7,280 channels are its buffers."""
    found = api.inspect(googlenet).parameters
    assert found.trainable == 6_624_904
    assert found.elements == 6_624_904 + 2 * 7_280 == 6_639_464
    assert found.to_dict()["trainable"] == 6_624_904
    assert found.bytes == 4 * 6_639_464


def test_googlenet_has_the_macs_of_torchvision(googlenet: onnx.ModelProto) -> None:
    """torchvision publishes 1.50 GMACs for the convolutions and the classifier."""
    totals = api.inspect(googlenet).totals
    assert round(sum(totals.macs.values()) / 1e9, 2) == 1.50
    assert not totals.uncounted


@pytest.mark.parametrize("form", ["value = float[3] {1, 2, 3}", "value_floats = [1.0, 2.0, 3.0]"])
def test_the_parameters_in_a_function_count_in_every_form(form: str) -> None:
    model = parser.parse_model(f"""
        <ir_version: 10, opset_import: ["" : 17, "local" : 1]>
        g (float[2,3] x) => (float[2,3] y) {{ y = local.scaled(x) }}
        <domain: "local", opset_import: ["" : 17]>
        scaled (a) => (b) {{ w = Constant<{form}>()  b = Mul(a, w) }}
    """)
    assert api.inspect(model).parameters.elements == 3


def test_of_single_elements_those_are_parameters_that_pytorch_says() -> None:
    """As `torch.onnx.export` writes them: a scale of an attention is no parameter, a slope of PRelu that was reshaped is one."""
    model = parsed(
        "g (float[2,3] x) => (float[2,3] y)"
        " <float[1] gamma = {1}, float scale = {2}, float[3] table = {1,2,3}, float[1,1] val_2 = {0.5}, float[1] val_3 = {0.25}>"
        " { a = Mul(x, gamma)  b = Mul(a, scale)  c = Add(b, table)  d = PRelu(c, val_2)  y = Mul(d, val_3) }"
    )
    kind, folded = "pkg.torch.export.graph_signature.InputSpec.kind", "pkg.onnxscript.optimizer.folded_from"
    for name, note in {
        "gamma": (kind, "PARAMETER"),
        "scale": (kind, "PARAMETER"),
        "table": (kind, "BUFFER"),
        "val_2": (folded, "['act.weight', 'val_1']"),
        "val_3": (folded, "['getitem', 'val_0']"),
    }.items():
        note_of(model, name, *note)
    found = api.inspect(model, tree=True)
    assert (found.parameters.elements, found.parameters.trainable) == (6, 3)
    assert found.modules is not None
    assert found.modules[0].parameters == 6


def note_of(model: onnx.ModelProto, name: str, key: str, text: str) -> None:
    """Note `key` at the constant `name`, which gets an entry of `value_info` for it."""
    stored = next(tensor for tensor in model.graph.initializer if tensor.name == name)
    info = helper.make_tensor_value_info(name, stored.data_type, stored.dims)
    info.metadata_props.add(key=key, value=text)
    model.graph.value_info.append(info)
