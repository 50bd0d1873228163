"""A decoder of the shape of Llama-7B whose weights are a sparse file: 27 GB of float32 zeros that take no space on the disk.

    python -m tests.bench.large_decoder OUT.onnx [--layers 32] [--hidden 4096] [--heads 32] [--inner 11008] [--words 32000]

The decoder reads one sequence with its cache of keys and values, and spells out RMS norms, rotary embeddings, attention and SwiGLU, as
TorchScript exporters do.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper


@dataclass(frozen=True)
class DecoderSize:
    """The sizes of a decoder: layers, width, heads, inner width of the feed-forward part, words, tokens read, and tokens cached."""

    layers: int = 32
    hidden: int = 4096
    heads: int = 32
    inner: int = 11008
    words: int = 32000
    tokens: int = 1
    cached: int = 127

    @property
    def head(self) -> int:
        """The elements of a head."""
        return self.hidden // self.heads


def make(path: Path, size: DecoderSize) -> None:
    """Write the decoder to `path`, and its weights beside it as a sparse file of the same name with `.data` added."""
    decoder = _Decoder(size, f"{path.name}.data")
    onnx.save(decoder.model(), path)
    with (path.parent / decoder.location).open("wb") as file:
        file.truncate(decoder.bytes)


class _Decoder:
    def __init__(self, size: DecoderSize, location: str) -> None:
        self.location = location
        self.bytes = 0
        self._size = size
        self._nodes: list[onnx.NodeProto] = []
        self._tensors: list[onnx.TensorProto] = []
        self._inputs: list[onnx.ValueInfoProto] = []
        self._outputs: list[onnx.ValueInfoProto] = []

    def model(self) -> onnx.ModelProto:
        size = self._size
        whole = size.tokens + size.cached
        ids = self._input("input_ids", [1, size.tokens], TensorProto.INT64)
        mask = self._input("mask", [1, 1, size.tokens, whole])
        cos, sin = (self._input(name, [1, 1, size.tokens, size.head]) for name in ("cos", "sin"))
        for name, number in (("two", 2.0), ("eps", 1e-5), ("scale", size.head**0.5)):
            self._tensors.append(numpy_helper.from_array(np.array(number, np.float32), name))
        lists = {
            "split": [1, size.tokens, size.heads, size.head],
            "joined": [1, size.tokens, size.hidden],
            "start": [0],
            "middle": [size.head // 2],
            "end": [size.head],
            "axis": [3],
        }
        for name, numbers in lists.items():
            self._tensors.append(numpy_helper.from_array(np.array(numbers, np.int64), name))
        value = self._node("Gather", "/embed", self._weight("embed", size.words, size.hidden), ids)
        for layer in range(size.layers):
            value = self._layer(f"/layers.{layer}", value, mask, cos, sin)
        value = self._norm("/norm", value)
        logits = self._node("MatMul", "/head", value, self._weight("head", size.hidden, size.words))
        self._outputs.insert(0, self._info(logits, [1, size.tokens, size.words]))
        graph = helper.make_graph(self._nodes, "decoder", self._inputs, self._outputs, self._tensors)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)

    def _layer(self, name: str, x: str, mask: str, cos: str, sin: str) -> str:
        size = self._size
        normed = self._norm(f"{name}/input_norm", x)
        q, k, v = (self._heads(f"{name}/{part}", normed) for part in ("q", "k", "v"))
        q, k = (self._turned(f"{name}/rotary_{part}", value, cos, sin) for part, value in (("q", q), ("k", k)))
        k, v = (self._cached(f"{name}/{part}", value) for part, value in (("key", k), ("value", v)))
        across = self._node("Transpose", f"{name}/across", k, perm=[0, 1, 3, 2])
        scores = self._node("Div", f"{name}/scaled", self._node("MatMul", f"{name}/scores", q, across), "scale")
        masked = self._node("Add", f"{name}/masked", scores, mask)
        mixed = self._node("MatMul", f"{name}/mixed", self._node("Softmax", f"{name}/softmax", masked, axis=-1), v)
        back = self._node("Transpose", f"{name}/back", mixed, perm=[0, 2, 1, 3])
        out = self._linear(
            f"{name}/o", self._node("Reshape", f"{name}/joined", back, "joined"), size.hidden, size.hidden
        )
        x = self._node("Add", f"{name}/attended", x, out)
        normed = self._norm(f"{name}/post_norm", x)
        gate = self._linear(f"{name}/gate", normed, size.hidden, size.inner)
        gate = self._node("Mul", f"{name}/silu", gate, self._node("Sigmoid", f"{name}/sigmoid", gate))
        inner = self._node("Mul", f"{name}/gated", gate, self._linear(f"{name}/up", normed, size.hidden, size.inner))
        return self._node("Add", f"{name}/out", x, self._linear(f"{name}/down", inner, size.inner, size.hidden))

    def _norm(self, name: str, x: str) -> str:
        mean = self._node("ReduceMean", f"{name}/mean", self._node("Pow", f"{name}/pow", x, "two"), axes=[-1])
        root = self._node("Sqrt", f"{name}/root", self._node("Add", f"{name}/add", mean, "eps"))
        normed = self._node("Div", f"{name}/div", x, root)
        return self._node("Mul", f"{name}/mul", self._weight(f"{name}.weight", self._size.hidden), normed)

    def _linear(self, name: str, x: str, rows: int, columns: int) -> str:
        return self._node("MatMul", name, x, self._weight(f"{name}.weight", rows, columns))

    def _heads(self, name: str, x: str) -> str:
        value = self._linear(name, x, self._size.hidden, self._size.hidden)
        return self._node(
            "Transpose", f"{name}/heads", self._node("Reshape", f"{name}/split", value, "split"), perm=[0, 2, 1, 3]
        )

    def _turned(self, name: str, x: str, cos: str, sin: str) -> str:
        first = self._node("Slice", f"{name}/first", x, "start", "middle", "axis")
        second = self._node("Neg", f"{name}/neg", self._node("Slice", f"{name}/second", x, "middle", "end", "axis"))
        rotated = self._node("Concat", f"{name}/rotated", second, first, axis=3)
        straight = self._node("Mul", f"{name}/straight", x, cos)
        return self._node("Add", f"{name}/sum", straight, self._node("Mul", f"{name}/crossed", rotated, sin))

    def _cached(self, name: str, value: str) -> str:
        size = self._size
        past = self._input(f"past{name}", [1, size.heads, size.cached, size.head])
        present = self._node("Concat", f"{name}/present", past, value, axis=2)
        self._outputs.append(self._info(present, [1, size.heads, size.cached + size.tokens, size.head]))
        return present

    def _weight(self, name: str, *dims: int) -> str:
        length = 4 * int(np.prod(dims))
        place = {"location": self.location, "offset": str(self.bytes), "length": str(length)}
        tensor = TensorProto(name=name, dims=dims, data_type=TensorProto.FLOAT, data_location=TensorProto.EXTERNAL)
        tensor.external_data.extend(onnx.StringStringEntryProto(key=key, value=text) for key, text in place.items())
        self._tensors.append(tensor)
        self.bytes += length
        return name

    def _node(self, op_type: str, name: str, *inputs: str, **attributes: Any) -> str:
        self._nodes.append(helper.make_node(op_type, inputs, [f"{name}_output"], name, **attributes))
        return f"{name}_output"

    def _input(self, name: str, dims: list[int], type_: int = TensorProto.FLOAT) -> str:
        self._inputs.append(self._info(name, dims, type_))
        return name

    def _info(self, name: str, dims: list[int], type_: int = TensorProto.FLOAT) -> onnx.ValueInfoProto:
        return helper.make_tensor_value_info(name, type_, dims)


def main() -> None:
    """Write a decoder."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("out", type=Path)
    for name in ("layers", "hidden", "heads", "inner", "words", "tokens", "cached"):
        parser.add_argument(f"--{name}", type=int, default=getattr(DecoderSize, name))
    options = vars(parser.parse_args())
    make(options.pop("out"), DecoderSize(**options))


if __name__ == "__main__":
    main()
