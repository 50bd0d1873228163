"""Makes the products of a decoder layer of a Llama, their weights in an external file that takes little space on disk.

    python tests/tiling/decoder_layer.py FOLDER [HIDDEN FFN]

The sizes of Llama-7B are 4096 and 11008 (Touvron et al., arXiv 2302.13971, table 2). Every weight has some random rows, and is a
hole in the file elsewhere.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import onnx
from onnx import helper

from tests import build

TOKENS = 8
_ROWS = 4


def make(folder: Path, hidden: int, ffn: int, element: int = onnx.TensorProto.FLOAT16) -> Path:
    """Write layer.onnx and weights.bin into `folder`; return the path of the model."""
    shapes = {name: (hidden, hidden) for name in "qkvo"}
    shapes |= {"gate": (hidden, ffn), "up": (hidden, ffn), "down": (ffn, hidden)}
    initializers = _weights(folder / "weights.bin", shapes, element)
    inputs, outputs = (helper.make_tensor_value_info(name, element, [1, TOKENS, hidden]) for name in "xy")
    path = folder / "layer.onnx"
    path.write_bytes(build.model(_layer(), [inputs], [outputs], initializers, ir_version=8).SerializeToString())
    return path


def _weights(path: Path, shapes: dict[str, tuple[int, int]], element: int) -> list[onnx.TensorProto]:
    dtype = helper.tensor_dtype_to_np_dtype(element)
    random = np.random.default_rng(0)
    initializers, start = [], 0
    with path.open("wb") as file:
        for name, (rows, columns) in shapes.items():
            length = rows * columns * dtype.itemsize
            for row in random.integers(0, rows, _ROWS):
                file.seek(start + int(row) * columns * dtype.itemsize)
                file.write((random.standard_normal(columns) / 8).astype(dtype).tobytes())
            tensor = onnx.TensorProto(name=name, data_type=element, dims=[rows, columns])
            tensor.data_location = onnx.TensorProto.EXTERNAL
            for key, value in (("location", path.name), ("offset", start), ("length", length)):
                tensor.external_data.add(key=key, value=str(value))
            initializers.append(tensor)
            start += length
        file.truncate(start)
    return initializers


def _layer() -> list[onnx.NodeProto]:
    """Return the nodes of a layer: its matrix products, joined by sums and one Mul in place of attention and activation."""
    made = {name: f"{name}_out" for name in ("q", "k", "v", "mixed", "o", "r", "gate", "up", "gated", "down")}

    def product(of: str, name: str) -> onnx.NodeProto:
        return helper.make_node("MatMul", [of, name], [made[name]], name=f"product_{name}")

    return [
        *(product("x", name) for name in "qkv"),
        helper.make_node("Sum", [made["q"], made["k"], made["v"]], [made["mixed"]]),
        product(made["mixed"], "o"),
        helper.make_node("Add", ["x", made["o"]], [made["r"]]),
        product(made["r"], "gate"),
        product(made["r"], "up"),
        helper.make_node("Mul", [made["gate"], made["up"]], [made["gated"]]),
        product(made["gated"], "down"),
        helper.make_node("Add", [made["r"], made["down"]], ["y"]),
    ]


if __name__ == "__main__":
    sizes = [int(text) for text in sys.argv[2:4]] or [4096, 11008]
    print(make(Path(sys.argv[1]), *sizes))  # noqa: T201
