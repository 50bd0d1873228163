"""Doc strings, metadata and value_info, put wherever ONNX has a place for them."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import Any

import onnx

_WORDS = ("block.1/attention", "stage 2", "Größe", "a\nb", "x", "pkg.torch.onnx.name_scopes", "{}", "0", "…")


class Notes:
    """Writes notes into a model, each with the same probability."""

    def __init__(self, random: Random, often: float, *, metadata: bool) -> None:
        self._random = random
        self._often = often
        self._metadata = metadata

    def write(self, model: onnx.ModelProto) -> None:
        """Write notes into `model`."""
        self._note(model, always_metadata=True)
        self._graph(model.graph)
        for function in model.functions:
            self._note(function)
            self._nodes(function.node)

    def _graph(self, graph: onnx.GraphProto) -> None:
        self._note(graph)
        for proto in (*graph.input, *graph.output, *graph.value_info, *graph.initializer):
            self._note(proto)
        for info in (*graph.input, *graph.output):
            if self._sometimes(0.1) and info.type.HasField("tensor_type"):
                info.type.denotation = "TENSOR"
        for tensor in graph.initializer:
            if self._sometimes(0.05):
                pair = onnx.StringStringEntryProto(key="SCALE_TENSOR", value=tensor.name)
                graph.quantization_annotation.add(tensor_name=tensor.name, quant_parameter_tensor_names=[pair])
        self._nodes(graph.node)

    def _nodes(self, nodes: Any) -> None:
        for node in nodes:
            self._note(node)
            for attribute in node.attribute:
                if self._sometimes(0.4):
                    attribute.doc_string = self._text()
                if attribute.HasField("g"):
                    self._graph(attribute.g)
                if attribute.HasField("t"):
                    self._note(attribute.t)

    def _note(self, proto: Any, *, always_metadata: bool = False) -> None:
        if self._sometimes(1):
            proto.doc_string = self._text()
        if (self._metadata or always_metadata) and self._sometimes(1):
            for key in self._random.sample(_WORDS, self._random.choice([1, 1, 2])):
                proto.metadata_props.add(key=key, value=self._text())

    def _sometimes(self, factor: float) -> bool:
        return self._random.random() < self._often * factor

    def _text(self) -> str:
        return f"{self._random.choice(_WORDS)} {self._random.randrange(100)}"


def graphs_of(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    """Yield `graph` and the graphs in its nodes."""
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield from graphs_of(attribute.g)
