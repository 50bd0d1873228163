"""Runs single nodes, each in an onnxruntime session of its own with optimisation off."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
from numpy.typing import NDArray
from onnx import TensorProto, helper

Array = NDArray[Any]
Described = tuple[str, str, int, int]
"""The name of an operand, whether it is a tensor or a sequence, its element type, and its number of axes."""
FLOAT = TensorProto.FLOAT
NARROW = {
    code: f"tensor({helper.tensor_dtype_to_string(code).removeprefix('TensorProto.').lower()})"
    for code in helper.get_all_tensor_dtypes()
    if code == TensorProto.BFLOAT16 or code >= TensorProto.FLOAT8E4M3FN
}
"""Element types of which numpy has no arrays for onnxruntime, and its names for tensors of them."""


def session_of(data: bytes) -> ort.InferenceSession:
    """Return a session with optimisation off and one thread."""
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 4
    return ort.InferenceSession(data, options, providers=["CPUExecutionProvider"])


def run_model(model: onnx.ModelProto, feeds: Mapping[str, Array]) -> dict[str, Array]:
    """Return the outputs of `model`."""
    names = [info.name for info in model.graph.output]
    found = session_of(model.SerializeToString()).run(names, dict(feeds))
    return {name: as_array(one) for name, one in zip(names, found, strict=True)}


def as_array(value: Any) -> Array:
    """Return an output as an array: the numbers of a sequence follow one another."""
    if isinstance(value, list):
        return np.concatenate([np.zeros(0, np.float32), *(np.asarray(one).reshape(-1) for one in value)])
    return np.asarray(value)


def captured(node: onnx.NodeProto) -> set[str]:
    """Return the names that the graphs in `node` read from around it."""
    found: set[str] = set()
    for attribute in node.attribute:
        if attribute.HasField("g"):
            graph = attribute.g
            own = {info.name for info in graph.input} | {tensor.name for tensor in graph.initializer}
            own |= {name for one in graph.node for name in one.output}
            for one in graph.node:
                found |= (set(one.input) | captured(one)) - own
            found |= {info.name for info in graph.output} - own
    return found - {""}


class Kernels:
    """The sessions of nodes, kept for nodes that are equal."""

    def __init__(self, model: onnx.ModelProto) -> None:
        self._imports = {one.domain: one.version for one in model.opset_import}
        self._functions = list(model.functions)
        bodies = {(one.domain, one.name): [inner.op_type for inner in one.node] for one in model.functions}
        self._copies = {name for name, operators in bodies.items() if operators == ["Identity"]}
        self._ir_version = model.ir_version
        self._sessions: dict[Any, ort.InferenceSession] = {}

    def run(self, node: onnx.NodeProto, operands: Mapping[str, Array]) -> list[Array | None]:
        """Return the results of `node`, None for those that it leaves out. `operands` are what it and its graphs read, by name."""
        kept = onnx.NodeProto()
        kept.CopyFrom(node)
        kept.ClearField("metadata_props")
        kept.ClearField("doc_string")
        names = sorted({*(name for name in node.input if name), *captured(node)})
        types = tuple((name, *_described(operands[name])) for name in names)
        if (node.domain, node.op_type) in self._copies and types[0][2] in NARROW:
            return [operands[names[0]].copy()]  # onnxruntime has no kernel for Identity of four bits
        data = kept.SerializeToString(deterministic=True)
        session = self._sessions.get((data, types))
        if session is None:
            session = self._sessions[data, types] = self._session(kept, types)
        feeds = {
            name: operands[name].astype(np.float32) if code in NARROW else operands[name] for name, _, code, _ in types
        }
        results = iter(zip(session.get_outputs(), session.run(None, feeds), strict=True))
        return [_result(*next(results)) if name else None for name in node.output]

    def _session(self, node: onnx.NodeProto, types: Sequence[Described]) -> ort.InferenceSession:
        """Return the session of `node`, whose results of narrow types are cast to float."""
        session = session_of(self._model(node, types, {}).SerializeToString())
        codes = {text: code for code, text in NARROW.items()}
        narrow = {output.name: codes[output.type] for output in session.get_outputs() if output.type in codes}
        return session_of(self._model(node, types, narrow).SerializeToString()) if narrow else session

    def _model(self, node: onnx.NodeProto, types: Sequence[Described], narrow: Mapping[str, int]) -> onnx.ModelProto:
        """Return a model of `node`; numbers of narrow types go in and out as floats."""
        nodes, inputs = [], []
        for name, form, code, rank in types:
            described = helper.make_tensor_type_proto(FLOAT if code in NARROW else code, [None] * rank)
            if form == "sequence":
                described = helper.make_sequence_type_proto(described)
            if node.op_type in {"OptionalGetElement", "OptionalHasElement"}:  # before opset 18 they take nothing else
                described = helper.make_optional_type_proto(described)
            inputs.append(helper.make_value_info(name, described))
        cast = {name: (f"{name} (narrow)", code) for name, _, code, _ in types if code in NARROW}
        nodes += [helper.make_node("Cast", [name], [made], to=code) for name, (made, code) in cast.items()]
        inner = onnx.NodeProto()
        inner.CopyFrom(node)
        inner.input[:] = [cast[name][0] if name in cast else name for name in node.input]
        nodes.append(inner)
        outputs = [onnx.ValueInfoProto(name=name) for name in node.output if name]
        for place, output in enumerate(outputs):
            if output.name in narrow:
                shown = f"{narrow[output.name]}:{output.name}"
                nodes.append(helper.make_node("Cast", [output.name], [shown], to=FLOAT))
                outputs[place] = helper.make_tensor_value_info(shown, FLOAT, None)
        graph = helper.make_graph(nodes, "one", inputs, outputs)
        imports = [helper.make_opsetid(domain, version) for domain, version in self._imports.items()]
        return helper.make_model(graph, opset_imports=imports, ir_version=self._ir_version, functions=self._functions)


def _described(value: Any) -> tuple[str, int, int]:
    """Return the form, the element type and the number of axes of an operand."""
    if isinstance(value, list):
        return "sequence", FLOAT, np.ndim(value[0]) if value else 1
    return "tensor", helper.np_dtype_to_tensor_dtype(value.dtype), value.ndim


def _result(described: Any, value: Any) -> Any:
    """Return a result as the node makes it."""
    code, colon, _ = described.name.partition(":")
    if isinstance(value, list):
        return value
    if colon and code.isdecimal() and int(code) in NARROW:
        return np.asarray(value).astype(helper.tensor_dtype_to_np_dtype(int(code)))
    return np.asarray(value)


@lru_cache(maxsize=1)
def fill() -> bytes:
    """Return bytes that no tensor has."""
    return bytes(np.random.default_rng(0).integers(0, 256, 1 << 16, np.uint8))
