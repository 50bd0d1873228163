"""The models of the table of programs in C: networks for microcontrollers, from their papers, in plain ONNX with random weights.

Batch normalisation is folded into the convolutions. The batch is 1.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from models.make_mobilenet_v2 import Network, mobilenet_v2


class Layers(Network):
    """Layers of networks for microcontrollers, with random weights."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__(np.random.default_rng(seed))

    def hold(self, array: np.ndarray) -> str:
        """Add a constant."""
        name = f"constant_{len(self.initializers)}"
        self.initializers.append(numpy_helper.from_array(array, name))
        return name

    def same(
        self, x: str, into: int, out: int, size: tuple[int, int], stride: tuple[int, int] = (1, 1), group: int = 1
    ) -> str:
        """Add a convolution with a bias, then a Relu. Its padding keeps the size, as TensorFlow's does for stride 1."""
        weight, bias = self.constant(out, into // group, *size), self.constant(out)
        pads = [(one - 1) // 2 for one in size] + [one // 2 for one in size]
        made = self.add("Conv", x, weight, bias, kernel_shape=size, pads=pads, strides=stride, group=group)
        return self.add("Relu", made)

    def separable(self, x: str, into: int, out: int, stride: int = 1) -> str:
        """Add a depthwise convolution of 3 × 3, and one of 1 × 1."""
        deep = self.same(x, into, into, (3, 3), (stride, stride), into)
        return self.same(deep, into, out, (1, 1))

    def dense(self, x: str, into: int, out: int) -> str:
        """Add a fully connected layer with a bias."""
        return self.add("Gemm", x, self.constant(out, into), self.constant(out), transB=1)

    def classes(self, x: str, into: int, out: int) -> str:
        """Add the mean over the image, a fully connected layer and a Softmax."""
        flat = self.add("Flatten", self.add("GlobalAveragePool", x))
        return self.add("Softmax", self.dense(flat, into, out), axis=1)

    def model(
        self, name: str, inputs: dict[str, list[int]], outputs: dict[str, tuple[str, list[int]]]
    ) -> onnx.ModelProto:
        """Return the model of all nodes; `outputs` are renamed from the names in the pair."""
        for own, (made, _) in outputs.items():
            self.nodes.append(helper.make_node("Identity", [made], [own]))
        graph = helper.make_graph(
            self.nodes,
            name,
            [_info(one, sizes) for one, sizes in inputs.items()],
            [_info(one, sizes) for one, (_, sizes) in outputs.items()],
            self.initializers[2:],  # without the bounds of ReLU6
        )
        return _named_outputs(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10))


def _info(name: str, sizes: list[int]) -> onnx.ValueInfoProto:
    dtype = TensorProto.INT64 if name in {"token", "position"} else TensorProto.FLOAT
    return helper.make_tensor_value_info(name, dtype, sizes)


def _named_outputs(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return `model` with outputs named by the nodes that make them, and no Identity."""
    graph = model.graph
    names = {node.input[0]: node.output[0] for node in graph.node if node.op_type == "Identity"}
    kept = [node for node in graph.node if node.op_type != "Identity"]
    for node in kept:
        for values in (node.input, node.output):
            values[:] = [names.get(value, value) for value in values]
    del graph.node[:]
    graph.node.extend(kept)
    return model


# MLPerf Tiny (Banbury et al., 2021): four benchmarks.


def keyword_spotting() -> onnx.ModelProto:
    """DS-CNN (Zhang et al., 2017), as MLPerf Tiny has it: 49 × 10 coefficients, 64 channels, 12 words."""
    net = Layers()
    weight, bias = net.constant(64, 1, 10, 4), net.constant(64)
    first = net.add("Conv", "sound", weight, bias, kernel_shape=[10, 4], pads=[4, 1, 5, 1], strides=[2, 2])
    x = net.add("Relu", first)
    for _ in range(4):
        x = net.separable(x, 64, 64)
    return net.model("ds_cnn", {"sound": [1, 1, 49, 10]}, {"words": (net.classes(x, 64, 12), [1, 12])})


def visual_wake_words() -> onnx.ModelProto:
    """MobileNetV1 (Howard et al., 2017) of width 0.25 for images of 96 × 96: whether there is a person."""
    net = Layers()
    x = net.same("image", 3, 8, (3, 3), (2, 2))
    channels = 8
    for out, stride in ((16, 1), (32, 2), (32, 1), (64, 2), (64, 1), (128, 2), *[(128, 1)] * 5, (256, 2), (256, 1)):
        x = net.separable(x, channels, out, stride)
        channels = out
    return net.model("mobilenet_v1", {"image": [1, 3, 96, 96]}, {"person": (net.classes(x, 256, 2), [1, 2])})


def image_classification() -> onnx.ModelProto:
    """ResNet-8 (He et al., 2016), as MLPerf Tiny has it: images of 32 × 32, three stacks, 10 classes."""
    net = Layers()
    x, channels = net.same("image", 3, 16, (3, 3)), 16
    for out, stride in ((16, 1), (32, 2), (64, 2)):
        inner = net.same(x, channels, out, (3, 3), (stride, stride))
        inner = net.conv(inner, out, out, kernel=3)
        short = x if stride == 1 else net.conv(x, channels, out, stride=stride)
        x, channels = net.add("Relu", net.add("Add", short, inner)), out
    return net.model("resnet_8", {"image": [1, 3, 32, 32]}, {"classes": (net.classes(x, 64, 10), [1, 10])})


def anomaly_detection() -> onnx.ModelProto:
    """The autoencoder of MLPerf Tiny (after Koizumi et al., 2020): 640 → 128 × 4 → 8 → 128 × 4 → 640."""
    net = Layers()
    x, into = "sound", 640
    for out in (128, 128, 128, 128, 8, 128, 128, 128, 128):
        x, into = net.add("Relu", net.dense(x, into, out)), out
    return net.model("autoencoder", {"sound": [1, 640]}, {"again": (net.dense(x, into, 640), [1, 640])})


# Larger images.


def mobilenet_035_144() -> onnx.ModelProto:
    """MobileNetV2 (Sandler et al., 2018) of width 0.35 for images of 144 × 144."""
    return _of_one(mobilenet_v2(144, width=0.35, seed=0))


def mobilenet_100_224() -> onnx.ModelProto:
    """MobileNetV2 (Sandler et al., 2018) for images of 224 × 224."""
    return _of_one(mobilenet_v2(224, seed=0))


def _of_one(model: onnx.ModelProto) -> onnx.ModelProto:
    for info in (*model.graph.input, *model.graph.output):
        info.type.tensor_type.shape.dim[0].dim_value = 1
    return model


def mcunet() -> onnx.ModelProto:
    """A network like those of MCUNet (Lin et al., 2020): inverted residuals with kernels of 3, 5 and 7, images of 160 × 160."""
    net = Layers()
    x = net.clip(net.conv("image", 3, 16, kernel=3, stride=2))
    x = net.clip(net.conv(x, 16, 16, kernel=3, group=16))
    x, channels = net.conv(x, 16, 8), 8
    # Expansion, channels, kernel, stride.
    rows = ((3, 16, 7, 2), (5, 16, 3, 1), (4, 16, 5, 1), (5, 24, 7, 2), (4, 24, 5, 1), (4, 24, 3, 1), (5, 40, 5, 2), (4, 40, 5, 1),
            (5, 48, 5, 1), (4, 48, 3, 1), (6, 96, 7, 2), (5, 96, 3, 1), (4, 96, 5, 1), (6, 160, 7, 1))  # fmt: skip
    for expansion, out, kernel, stride in rows:
        wide = channels * expansion
        inner = net.clip(net.conv(x, channels, wide))
        inner = net.clip(net.conv(inner, wide, wide, kernel=kernel, stride=stride, group=wide))
        inner = net.conv(inner, wide, out)
        x, channels = (net.add("Add", x, inner) if stride == 1 and channels == out else inner), out
    made = net.model("mcunet", {"image": [1, 3, 160, 160]}, {"classes": (net.classes(x, 160, 1000), [1, 1000])})
    made.graph.initializer.extend(net.initializers[:2])
    return made


# Networks with a state.


def gru() -> onnx.ModelProto:
    """A layer of 64 gated recurrent units (Cho et al., 2014) over 49 × 10 coefficients, and 12 words."""
    net = Layers()
    weights = [net.constant(1, 3 * 64, 10), net.constant(1, 3 * 64, 64), net.constant(1, 6 * 64)]
    net.nodes.append(
        helper.make_node("GRU", ["sound", *weights], ["", "last"], "gru", hidden_size=64, linear_before_reset=1)
    )
    flat = net.add("Flatten", net.add("Transpose", "last", perm=[1, 0, 2]))
    scores = net.add("Softmax", net.dense(flat, 64, 12), axis=1)
    return net.model("gru", {"sound": [49, 1, 10]}, {"words": (scores, [1, 12])})


_WIDTH, _HEADS, _PAST, _TOKENS = 64, 4, 64, 256


def decoder() -> onnx.ModelProto:
    """Two layers of a decoder (Radford et al., 2019) of 64 channels, 4 heads and 256 tokens, with a cache of 64 positions.

    A run takes one token and its position, and the keys and values of all positions as inputs, and gives them with those of the token.
    """
    net = Layers()
    x = net.add("Gather", net.constant(_TOKENS, _WIDTH), "token")
    x = net.add("Add", x, net.add("Gather", net.constant(_PAST, _WIDTH), "position"))
    places = net.hold(np.arange(_PAST, dtype=np.int64)[None])
    is_later = net.add("Greater", places, "position")
    mask = net.add("Where", is_later, net.hold(np.asarray(-1e4, np.float32)), net.hold(np.asarray(0, np.float32)))
    inputs, outputs = {"token": [1], "position": [1]}, dict[str, tuple[str, list[int]]]()
    for layer in range(2):
        states = {}
        for kind in ("keys", "values"):
            inputs[f"{kind}_{layer}"] = [_PAST, _WIDTH]
            states[kind] = f"{kind}_{layer}"
        inner, made = _attention(net, _normal(net, x), states, mask)
        outputs.update({f"next_{kind}_{layer}": (name, [_PAST, _WIDTH]) for kind, name in made.items()})
        x = net.add("Add", x, inner)
        wide = _gelu(net, _projected(net, _normal(net, x), _WIDTH, 4 * _WIDTH))
        x = net.add("Add", x, _projected(net, wide, 4 * _WIDTH, _WIDTH))
    scores = _projected(net, _normal(net, x), _WIDTH, _TOKENS)
    return net.model("decoder", inputs, {"scores": (scores, [1, _TOKENS]), **outputs})


def _attention(net: Layers, x: str, states: dict[str, str], mask: str) -> tuple[str, dict[str, str]]:
    """Return the attention of one token to all before it, and the states with its key and value."""
    heads, made = {}, {}
    for kind in ("keys", "values"):
        row = net.add("Unsqueeze", "position", net.hold(np.asarray([1], np.int64)))
        made[kind] = net.add("ScatterND", states[kind], row, _projected(net, x, _WIDTH, _WIDTH))
        split = net.add("Reshape", made[kind], net.hold(np.asarray([_PAST, _HEADS, -1], np.int64)))
        heads[kind] = net.add("Transpose", split, perm=[1, 2, 0] if kind == "keys" else [1, 0, 2])
    asked = net.add("Reshape", _projected(net, x, _WIDTH, _WIDTH), net.hold(np.asarray([_HEADS, 1, -1], np.int64)))
    scaled = net.add("Mul", asked, net.hold(np.asarray((_WIDTH / _HEADS) ** -0.5, np.float32)))
    weights = net.add("Softmax", net.add("Add", net.add("MatMul", scaled, heads["keys"]), mask), axis=-1)
    mixed = net.add("MatMul", weights, heads["values"])
    return _projected(net, net.add("Reshape", mixed, net.hold(np.asarray([1, _WIDTH], np.int64))), _WIDTH, _WIDTH), made


def _projected(net: Layers, x: str, into: int, out: int) -> str:
    """Return a product with a matrix, with small weights, and a bias."""
    assert net.random is not None
    weight = (net.random.standard_normal((into, out)) / into**0.5).astype(np.float32)
    return net.add("Add", net.add("MatMul", x, net.hold(weight)), net.hold(np.zeros(out, np.float32)))


def _normal(net: Layers, x: str) -> str:
    ones, zeros = np.ones(_WIDTH, np.float32), np.zeros(_WIDTH, np.float32)
    return net.add("LayerNormalization", x, net.hold(ones), net.hold(zeros), axis=-1)


def _gelu(net: Layers, x: str) -> str:
    inner = net.add("Erf", net.add("Div", x, net.hold(np.asarray(2**0.5, np.float32))))
    half = net.add("Mul", x, net.add("Add", inner, net.hold(np.asarray(1, np.float32))))
    return net.add("Mul", half, net.hold(np.asarray(0.5, np.float32)))


def silero_vad() -> onnx.ModelProto | None:
    """Silero VAD at 16 kHz, of its package, with one stream of 576 samples a run; None where the package is not installed."""
    spec = find_spec("silero_vad")
    if spec is None or spec.origin is None:
        return None
    model = onnx.load(Path(spec.origin).parent / "data" / "silero_vad_16k_op15.onnx")
    for info in model.graph.input:
        for dim in info.type.tensor_type.shape.dim:
            if not dim.HasField("dim_value"):
                dim.dim_value = 576 if dim.dim_param == "sequence" else 1
    return model


MODELS: dict[str, Callable[[], onnx.ModelProto | None]] = {
    "keyword spotting, DS-CNN": keyword_spotting,
    "visual wake words, MobileNetV1 0.25-96": visual_wake_words,
    "image classification, ResNet-8": image_classification,
    "anomaly detection, autoencoder": anomaly_detection,
    "MobileNetV2 0.35-144": mobilenet_035_144,
    "MobileNetV2 1.0-224": mobilenet_100_224,
    "MCUNet-like 160": mcunet,
    "silero-vad": silero_vad,
    "GRU": gru,
    "decoder of two layers": decoder,
}
