"""Makes the products of one decoder layer of a Llama, its weights in an external file that takes little room on disk.

    python tests/tile/decoder_layer.py FOLDER [HIDDEN FFN]

The sizes of Llama-7B are 4096 and 11008 (Touvron et al., arXiv 2302.13971, table 2). Every weight has some random rows, and is a
hole in the file elsewhere.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import onnx
from onnx import helper

TOKENS = 8
_ROWS = 4


def make(folder: Path, hidden: int, ffn: int, element: int = onnx.TensorProto.FLOAT16) -> Path:
    """Write layer.onnx and weights.bin into `folder`; return the path of the model."""
    dtype = helper.tensor_dtype_to_np_dtype(element)
    shapes = {name: (hidden, hidden) for name in "qkvo"}
    shapes |= {"gate": (hidden, ffn), "up": (hidden, ffn), "down": (ffn, hidden)}
    random = np.random.default_rng(0)
    initializers, start = [], 0
    with (folder / "weights.bin").open("wb") as file:
        for name, (rows, columns) in shapes.items():
            length = rows * columns * dtype.itemsize
            for row in random.integers(0, rows, _ROWS):
                file.seek(start + int(row) * columns * dtype.itemsize)
                file.write((random.standard_normal(columns) / 8).astype(dtype).tobytes())
            tensor = onnx.TensorProto(name=name, data_type=element, dims=[rows, columns])
            tensor.data_location = onnx.TensorProto.EXTERNAL
            for key, value in (("location", "weights.bin"), ("offset", start), ("length", length)):
                tensor.external_data.add(key=key, value=str(value))
            initializers.append(tensor)
            start += length
        file.truncate(start)
    nodes = [helper.make_node("MatMul", ["x", name], [f"{name}_out"], name=name) for name in "qkv"]
    # What stands between the products is left out: tile does not touch it.
    nodes += [
        helper.make_node("Sum", ["q_out", "k_out", "v_out"], ["mixed"]),
        helper.make_node("MatMul", ["mixed", "o"], ["o_out"], name="o"),
        helper.make_node("Add", ["x", "o_out"], ["r"]),
        helper.make_node("MatMul", ["r", "gate"], ["g"], name="gate"),
        helper.make_node("MatMul", ["r", "up"], ["u"], name="up"),
        helper.make_node("Mul", ["g", "u"], ["gu"]),
        helper.make_node("MatMul", ["gu", "down"], ["d"], name="down"),
        helper.make_node("Add", ["r", "d"], ["y"]),
    ]
    inputs, outputs = (helper.make_tensor_value_info(name, element, [1, TOKENS, hidden]) for name in "xy")
    graph = helper.make_graph(nodes, "layer", [inputs], [outputs], initializers)
    path = folder / "layer.onnx"
    path.write_bytes(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8).SerializeToString()
    )
    return path


if __name__ == "__main__":
    sizes = [int(text) for text in sys.argv[2:4]] or [4096, 11008]
    print(make(Path(sys.argv[1]), *sizes))  # noqa: T201
