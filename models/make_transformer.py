"""Make transformer.onnx, the small vision transformer that the demo and the tests use.

The graph is written the way older PyTorch exporters write it (opset 14): LayerNorm, GELU and attention come apart into
elementary operators, the three attention projections are one product that is split. The weights are random, from a
fixed seed, and scaled so that values keep a healthy range through all blocks: it computes something, but it was never
trained, so its classes mean nothing.
"""

import argparse
import math
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

BLOCKS, HIDDEN, HEADS, MLP = 12, 72, 3, 144
IMAGE, PATCH, CLASSES, SEED = 64, 8, 100, 20
HEAD_SIZE = HIDDEN // HEADS


class Builder:
    """Collects nodes and constants; each method adds a piece of the network and returns the name of its output."""

    def __init__(self, image: int) -> None:
        self.patches = (image // PATCH) ** 2
        self.tokens = self.patches + 1  # the class token stands in front
        self.nodes: list[onnx.NodeProto] = []
        self.constants: dict[str, onnx.TensorProto] = {}
        self.random = np.random.default_rng(SEED)

    def node(self, op: str, name: str, *inputs: str, **attributes: Any) -> str:
        """Add a node with one output, which carries the node's name."""
        self.nodes.append(helper.make_node(op, inputs, [name], name, **attributes))
        return name

    def constant(self, name: str, value: NDArray[np.float32] | NDArray[np.int64]) -> str:
        """Add a constant; one that is there already under that name is shared."""
        self.constants.setdefault(name, numpy_helper.from_array(value, name))
        return name

    def scalar(self, name: str, value: float) -> str:
        """Add a float32 scalar, shared by all who ask for it."""
        return self.constant(name, np.array(value, np.float32))

    def ints(self, name: str, *values: int) -> str:
        """Add an int64 vector (a shape, the sizes of a split), shared by all who ask for it."""
        return self.constant(name, np.array(values, np.int64))

    def weight(self, name: str, *shape: int, std: float, mean: float = 0.0) -> str:
        """Add a random float32 tensor, uniform: every platform draws the same bits, which a normal does not promise."""
        uniform = self.random.random(shape) * 2 - 1
        return self.constant(name, (mean + std * math.sqrt(3) * uniform).astype(np.float32))

    def matmul(self, name: str, x: str, fan_in: int, fan_out: int) -> str:
        """Multiply by a weight whose scale keeps the variance of x."""
        weight = self.weight(f"{name}/weight", fan_in, fan_out, std=fan_in**-0.5)
        return self.node("MatMul", f"{name}/matmul", x, weight)

    def linear(self, name: str, x: str, fan_in: int, fan_out: int) -> str:
        """Multiply and add a bias, which the exporter writes first."""
        product = self.matmul(name, x, fan_in, fan_out)
        return self.node("Add", f"{name}/add", self.weight(f"{name}/bias", fan_out, std=0.1), product)

    def layer_norm(self, name: str, x: str) -> str:
        """Normalise the last axis, in nine operators."""
        mean = self.node("ReduceMean", f"{name}/mean", x, axes=[-1])
        centred = self.node("Sub", f"{name}/centre", x, mean)
        square = self.node("Pow", f"{name}/square", centred, self.scalar("norm/exponent", 2.0))
        variance = self.node("ReduceMean", f"{name}/variance", square, axes=[-1])
        shifted = self.node("Add", f"{name}/add_epsilon", variance, self.scalar("norm/epsilon", 1e-6))
        deviation = self.node("Sqrt", f"{name}/deviation", shifted)
        normal = self.node("Div", f"{name}/normalise", centred, deviation)
        scaled = self.node("Mul", f"{name}/scale", normal, self.weight(f"{name}/weight", HIDDEN, mean=1.0, std=0.1))
        return self.node("Add", f"{name}/shift", scaled, self.weight(f"{name}/bias", HIDDEN, std=0.1))

    def gelu(self, name: str, x: str) -> str:
        """Apply the exact GELU, x (1 + erf(x / sqrt 2)) / 2."""
        divided = self.node("Div", f"{name}/div", x, self.scalar("gelu/sqrt_two", math.sqrt(2)))
        erf = self.node("Erf", f"{name}/erf", divided)
        shifted = self.node("Add", f"{name}/add_one", erf, self.scalar("gelu/one", 1.0))
        product = self.node("Mul", f"{name}/mul", x, shifted)
        return self.node("Mul", f"{name}/halve", product, self.scalar("gelu/half", 0.5))

    def projections(self, name: str, x: str) -> list[str]:
        """Project x to queries, keys (transposed) and values by one product; each is (1, heads, tokens, head size)."""
        product = self.matmul(f"{name}/qkv", x, HIDDEN, 3 * HIDDEN)
        parts = [f"{name}/split/{part}" for part in "qkv"]
        sizes = self.ints("attention/split_sizes", HIDDEN, HIDDEN, HIDDEN)
        self.nodes.append(helper.make_node("Split", [product, sizes], parts, f"{name}/split", axis=-1))
        shape = self.ints("attention/heads_shape", 1, self.tokens, HEADS, HEAD_SIZE)
        heads = []
        for part, perm in zip("qkv", ([0, 2, 1, 3], [0, 2, 3, 1], [0, 2, 1, 3]), strict=True):
            bias = self.weight(f"{name}/{part}/bias", HIDDEN, std=0.1)
            added = self.node("Add", f"{name}/{part}/add", bias, f"{name}/split/{part}")
            reshaped = self.node("Reshape", f"{name}/{part}/reshape", added, shape)
            heads.append(self.node("Transpose", f"{name}/{part}/transpose", reshaped, perm=perm))
        return heads

    def attention(self, name: str, x: str) -> str:
        """Attend from every token to every token, in several heads."""
        q, k, v = self.projections(name, x)
        scores = self.node("MatMul", f"{name}/scores", q, k)
        scaled = self.node("Div", f"{name}/scale", scores, self.scalar("attention/divisor", math.sqrt(HEAD_SIZE)))
        softmax = self.node("Softmax", f"{name}/softmax", scaled, axis=-1)
        context = self.node("MatMul", f"{name}/context", softmax, v)
        together = self.node("Transpose", f"{name}/transpose", context, perm=[0, 2, 1, 3])
        shape = self.ints("attention/tokens_shape", 1, self.tokens, HIDDEN)
        return self.linear(f"{name}/out", self.node("Reshape", f"{name}/reshape", together, shape), HIDDEN, HIDDEN)

    def block(self, name: str, x: str) -> str:
        """Add one encoder block: attention and MLP, each behind a norm and beside a residual."""
        attended = self.attention(f"{name}/attention", self.layer_norm(f"{name}/norm1", x))
        x = self.node("Add", f"{name}/residual1", attended, x)
        wide = self.linear(f"{name}/mlp/fc1", self.layer_norm(f"{name}/norm2", x), HIDDEN, MLP)
        narrow = self.linear(f"{name}/mlp/fc2", self.gelu(f"{name}/mlp/gelu", wide), MLP, HIDDEN)
        return self.node("Add", f"{name}/residual2", narrow, x)

    def embedding(self, image: str) -> str:
        """Cut the image into patches, one token each, put the class token in front and add positions."""
        kernel = self.weight("embedding/patch/weight", HIDDEN, 3, PATCH, PATCH, std=(3 * PATCH**2) ** -0.5)
        bias = self.weight("embedding/patch/bias", HIDDEN, std=0.1)
        sides = {"kernel_shape": [PATCH, PATCH], "strides": [PATCH, PATCH]}
        patches = self.node("Conv", "embedding/patch/conv", image, kernel, bias, **sides)
        shape = self.ints("embedding/patch/shape", 1, HIDDEN, self.patches)
        flat = self.node("Reshape", "embedding/patch/reshape", patches, shape)
        tokens = self.node("Transpose", "embedding/patch/transpose", flat, perm=[0, 2, 1])
        first = self.weight("embedding/class_token", 1, 1, HIDDEN, std=1.0)
        joined = self.node("Concat", "embedding/concat", first, tokens, axis=1)
        return self.node(
            "Add", "embedding/add", joined, self.weight("embedding/position", 1, self.tokens, HIDDEN, std=0.5)
        )

    def head(self, x: str, output: str) -> None:
        """Classify by the class token."""
        index = self.constant("head/index", np.array(0, np.int64))
        token = self.node("Gather", "head/class_token", self.layer_norm("norm", x), index, axis=1)
        weight = self.weight("head/weight", CLASSES, HIDDEN, std=HIDDEN**-0.5)
        bias = self.weight("head/bias", CLASSES, std=0.1)
        self.nodes.append(helper.make_node("Gemm", [token, weight, bias], [output], "head/gemm", transB=1))


def make_transformer(blocks: int = BLOCKS, image: int = IMAGE) -> onnx.ModelProto:
    """Build the model with so many `blocks`: `image` (1, 3, `image`, `image`) to `logits` (1, 100), both float32."""
    builder = Builder(image)
    doc = (
        f"A vision transformer of {blocks} pre-norm blocks, {HIDDEN} wide, {HEADS} heads, MLP {MLP}, on {builder.tokens} tokens; "
        "untrained, with random weights from a fixed seed. Made by models/make_transformer.py."
    )
    x = builder.embedding("image")
    for index in range(blocks):
        x = builder.block(f"block.{index}", x)
    builder.head(x, "logits")

    image_doc = "One RGB image, channels first, each channel normalised to mean 0 and deviation 1."
    pixels = helper.make_tensor_value_info("image", TensorProto.FLOAT, [1, 3, image, image], image_doc)
    logits = helper.make_tensor_value_info("logits", TensorProto.FLOAT, [1, CLASSES], "A score for each class.")
    constants = list(builder.constants.values())
    graph = helper.make_graph(builder.nodes, "transformer", [pixels], [logits], constants, doc)
    opset = helper.make_opsetid("", 14)
    model = helper.make_model(graph, opset_imports=[opset], ir_version=7, producer_name="onnxtile", doc_string=doc)
    helper.set_model_props(model, {"description": doc, "license": "Apache-2.0", "seed": str(SEED)})
    return model


def main() -> None:
    """Write the model to the path given, or beside this script."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("out", type=Path, nargs="?", default=Path(__file__).with_name("transformer.onnx"))
    out = parser.parse_args().out
    model = make_transformer()
    out.write_bytes(model.SerializeToString(deterministic=True))
    print(f"{out}: {len(model.graph.node)} nodes, {out.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
