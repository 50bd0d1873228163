"""Published numbers of published networks, and that a fused or a huge model says the same."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper, parser

from onnxtile import api
from onnxtile.system.errors import UsageError
from tests import build
from tests.build import parsed

Light = Callable[[str], Path]


@pytest.mark.parametrize(
    ("name", "macs", "parameters"),
    [
        ("inception_v1", {"Conv": 1_430_532_352, "Gemm": 1_024_000}, 6_998_552),
        ("bvlc_alexnet", {"Conv": 595_938_432, "Gemm": 58_621_952}, 60_965_224),
        ("vgg19", {"Conv": 19_508_428_800, "Gemm": 123_633_664}, 143_667_240),
        ("squeezenet", {"Conv": 349_151_936}, 1_235_496),
    ],
)
def test_work_and_parameters_as_published(light: Light, name: str, macs: dict[str, int], parameters: int) -> None:
    result = api.inspect(light(name))
    assert result.totals.macs == macs
    assert result.parameters.elements == parameters
    assert result.parameters.bytes == 4 * parameters
    assert not result.unknown
    assert not result.totals.unknown


def test_bias_additions_are_counted_apart(light: Light) -> None:
    totals = api.inspect(light("inception_v1")).totals
    assert totals.macs["Conv"] + totals.additions["Conv"] == 1_433_545_984


def test_mobilenet_v2_of_the_paper(mobilenet: onnx.ModelProto) -> None:
    """300 million MACs (table 4 of the paper), and the traffic that a course measured at its widest node."""
    result = api.inspect(mobilenet, dims={"batch": 1})
    assert sum(result.totals.macs.values()) == 300_774_272
    assert result.traffic.peak == 9_633_792
    assert result.traffic.peak == 2 * 96 * 112 * 112 * 4
    assert next(layer.op for layer in result.layers if layer.node == result.traffic.peak_node) == "Clip"
    activations = sum(one.bytes or 0 for layer in result.layers for one in layer.outputs)
    assert result.traffic.activations == activations
    assert result.to_dict()["traffic"]["activations_with_inputs"] == activations + 3 * 224 * 224 * 4


def test_any_size_costs_the_same_to_ask(light: Light) -> None:
    one = api.inspect(light("resnet50"))
    many = api.inspect(light("resnet50"), shapes={"gpu_0/data_0": (10_000, 3, 224, 224)})
    assert many.totals.macs["Conv"] == 10_000 * one.totals.macs["Conv"]
    assert many.traffic.peak == 10_000 * one.traffic.peak
    assert not one.conflicts
    (conflict,) = many.conflicts
    assert "[1, 2048]" in conflict.reason, "the file has its batch size in a Reshape"


def test_a_batch_multiplies_all_but_the_parameters(mobilenet: onnx.ModelProto) -> None:
    one, two = (api.inspect(mobilenet, dims={"batch": n}) for n in (1, 2))
    assert two.totals.macs == {op: 2 * count for op, count in one.totals.macs.items()}
    assert two.traffic.sum == 2 * one.traffic.sum
    assert two.parameters == one.parameters
    assert not two.conflicts


def test_a_batch_that_is_open_is_1_and_said(mobilenet: onnx.ModelProto) -> None:
    result = api.inspect(mobilenet)
    assert dict(result.sizes) == {"batch": 1}
    assert result.totals.macs == api.inspect(mobilenet, dims={"batch": 1}).totals.macs


def test_another_free_dimension_is_not_guessed(mobilenet: onnx.ModelProto) -> None:
    opened = onnx.ModelProto()
    opened.CopyFrom(mobilenet)
    opened.graph.input[0].type.tensor_type.shape.dim[2].dim_param = "rows"
    result = api.inspect(opened)
    assert result.totals.macs == {} and not result.sizes
    assert all("batch" in remark.reason or "rows" in remark.reason for remark in result.unknown)
    work = [layer.work for layer in result.layers if layer.op in {"Conv", "Gemm"}]
    assert all(one.unknown and one.total is None for one in work)


@pytest.mark.parametrize("name", ["bert_ts14_sim", "gpt2_dy20", "llama_ts14_sim", "dinov2_dy20"])
def test_fusing_moves_the_work_and_loses_none(zoo: Callable[[str], Path], name: str) -> None:
    plain = api.inspect(zoo(name), training=True)
    fused = api.inspect(api.fuse(zoo(name), verify=False).model, training=True)
    assert fused.totals.macs == plain.totals.macs
    assert fused.totals.additions == plain.totals.additions
    assert fused.totals.flops == plain.totals.flops
    assert plain.training is not None and fused.training is not None
    assert fused.training.bytes == plain.training.bytes
    assert fused.traffic.sum < plain.traffic.sum
    assert any(layer.op.startswith("onnxtile::") and layer.work.total for layer in fused.layers)


def test_what_inspect_says_is_json_and_deterministic(light: Light) -> None:
    first, second = (
        json.dumps(api.inspect(light("shufflenet"), training=True).to_dict(), allow_nan=False) for _ in range(2)
    )
    assert first == second
    content = json.loads(first)
    assert {"inputs", "outputs", "operators", "parameters", "macs", "traffic", "nodes", "training"} <= set(content)


def test_an_unknown_dimension_is_an_error(mobilenet: onnx.ModelProto) -> None:
    with pytest.raises(UsageError, match="no dimension 'bath'"):
        api.inspect(mobilenet, dims={"bath": 1})


def test_bodies_are_listed_on_their_own(silero: Callable[[str], Path]) -> None:
    result = api.inspect(silero("silero_vad"))
    assert result.bodies
    listed = {layer.body for layer in result.layers}
    assert listed == {"", *result.bodies}
    (branch,) = (remark for remark in result.totals.unknown if "bodies" in remark.reason)
    assert any(body.startswith(branch.name) for body in result.bodies)


@pytest.mark.parametrize(("name", "saved"), [("vgg19", 78_473_216), ("squeezenet", 21_069_728)])
def test_training_keeps_what_pytorch_saves(light: Light, name: str, saved: int) -> None:
    """The bytes of different storages that torch.autograd.graph.saved_tensors_hooks saw (PyTorch 2.13, a CPU, no Softmax at the end)."""
    training = api.inspect(light(name), training=True).training
    assert training is not None
    assert training.bytes == saved + training.by_operator["Softmax"]
    assert training.by_operator["Softmax"] == 1000 * 4


def test_a_normalisation_and_a_gelu_that_were_taken_apart_keep_what_the_whole_does() -> None:
    text = """<ir_version: 10, opset_import: ["": 17]> g (float[8,4] x) => (float[8,4] y)
    <float[4,4] w = {1,0,0,0,0,1,0,0,0,0,1,0,0,0,0,1}, float[4] s = {1,2,3,4}, float[4] b = {1,2,3,4},
     float two = {2}, float e = {0.00001}, float r = {1.4142135}, float one = {1}, float half = {0.5}> {
      h = MatMul(x, w)
      m = ReduceMean<axes = [-1]>(h)  d = Sub(h, m)  p = Pow(d, two)  v = ReduceMean<axes = [-1]>(p)
      ve = Add(v, e)  q = Sqrt(ve)  n = Div(d, q)  ns = Mul(n, s)  l = Add(ns, b)
      t = Div(l, r)  f = Erf(t)  g1 = Add(f, one)  g2 = Mul(l, g1)  y = Mul(g2, half)
    }"""
    training = api.inspect(onnx.parser.parse_model(text), training=True).training
    assert training is not None
    assert [value.bytes for value in training.values] == [128, 128, 128, 8 * 8]
    assert [value.name for value in training.values][:3] == ["x", "h", "l"]


def test_what_is_trained_of_resnet50(light: Light) -> None:
    """The number that torchvision gives for its parameters; means and variances are its buffers."""
    parameters = api.inspect(light("resnet50")).parameters
    assert parameters.trainable == 25_557_032
    assert parameters.elements == 25_557_032 + 53_120


# Parameters of GoogLeNet with batch normalisation, as torchvision builds it: those of all kinds, and those that can be trained.


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
    return build.model(net.nodes, [image], [scores], net.weights, ir_version=8)


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
    assert found.modules is not None and found.modules[0].parameters == 6


def note_of(model: onnx.ModelProto, name: str, key: str, text: str) -> None:
    """Note `key` at the constant `name`, which gets an entry of `value_info` for it."""
    stored = next(tensor for tensor in model.graph.initializer if tensor.name == name)
    info = helper.make_tensor_value_info(name, stored.data_type, stored.dims)
    info.metadata_props.add(key=key, value=text)
    model.graph.value_info.append(info)
