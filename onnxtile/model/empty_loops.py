"""Loops without a node in their body: onnxruntime looks between two nodes whether a run is to stop, so it cannot stop these."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence

import onnx
from onnx import numpy_helper

from onnxtile.errors import ModelError

MOST_TURNS = 1_000_000
"""Turns that a Loop with an empty body may take: onnxruntime does these within a second."""


def require_few_empty_turns(proto: onnx.ModelProto) -> None:
    """Raise ModelError where a Loop of `proto` has an empty body, and no constant that keeps it to `MOST_TURNS`."""
    # Before version 4 of the format, every initializer had to be listed as an input, and no caller overrides it.
    given = {info.name for info in proto.graph.input} if proto.ir_version >= 4 else set[str]()
    _require_few(proto.graph.node, [proto.graph], given)
    for function in proto.functions:
        _require_few(function.node, [function], set())


def _require_few(
    nodes: Iterable[onnx.NodeProto], around: Sequence[onnx.GraphProto | onnx.FunctionProto], given: Collection[str]
) -> None:
    """Look at `nodes`, and the nodes in their bodies; `around` are the graphs whose constants they read, the outermost first.

    The caller may override the numbers with names in `given`.
    """
    for node in nodes:
        for attribute in node.attribute:
            if not attribute.HasField("g"):
                continue
            if node.op_type == "Loop" and node.domain in {"", "ai.onnx"} and not attribute.g.node:
                _require_few_turns(node, around, given)
            inner = {info.name for info in attribute.g.input}
            _require_few(attribute.g.node, [*around, attribute.g], {*given, *inner})


def _require_few_turns(
    loop: onnx.NodeProto, around: Sequence[onnx.GraphProto | onnx.FunctionProto], given: Collection[str]
) -> None:
    name = next((name for name in loop.input[:1] if name not in given), "")
    turns = next((number for graph in reversed(around) for number in _numbers(graph, name)), None) if name else None
    if turns is None or turns > MOST_TURNS:
        raise ModelError(
            "a Loop has an empty body, where onnxruntime cannot be stopped",
            hint=f"give it a constant number of turns, {MOST_TURNS:,} at most",
        )


def _numbers(graph: onnx.GraphProto | onnx.FunctionProto, name: str) -> Iterator[int]:
    """Yield the number that `name` is in `graph`, where that is a constant of one element."""
    for node in graph.node:
        if node.op_type == "Constant" and name in node.output:
            yield from (number for attribute in node.attribute for number in _number(attribute))
    if isinstance(graph, onnx.GraphProto):
        yield from (number for tensor in graph.initializer if tensor.name == name for number in _element(tensor))


def _number(attribute: onnx.AttributeProto) -> Iterable[int]:
    if attribute.name == "value":
        return _element(attribute.t)
    return [attribute.i] if attribute.name == "value_int" else attribute.ints


def _element(tensor: onnx.TensorProto) -> Iterable[int]:
    is_stated = tensor.data_type == onnx.TensorProto.INT64 and not tensor.external_data
    found: list[int] = (
        numpy_helper.to_array(tensor).reshape(-1).tolist() if is_stated and max(tensor.dims, default=1) == 1 else []
    )
    return found
