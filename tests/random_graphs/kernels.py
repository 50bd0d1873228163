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
BRAIN = TensorProto.BFLOAT16


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
    return {name: np.asarray(one) for name, one in zip(names, found, strict=True)}


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
        self._ir_version = model.ir_version
        self._sessions: dict[Any, ort.InferenceSession] = {}

    def run(self, node: onnx.NodeProto, operands: Mapping[str, Array]) -> list[Array | None]:
        """Return the results of `node`, None for those that it leaves out. `operands` are what it and its graphs read, by name."""
        kept = onnx.NodeProto()
        kept.CopyFrom(node)
        kept.ClearField("metadata_props")
        kept.ClearField("doc_string")
        names = sorted({*(name for name in node.input if name), *captured(node)})
        types = tuple(
            (name, helper.np_dtype_to_tensor_dtype(operands[name].dtype), operands[name].ndim) for name in names
        )
        data = kept.SerializeToString(deterministic=True)
        session = self._sessions.get((data, types))
        if session is None:
            session = self._sessions[data, types] = self._session(kept, types)
        feeds = {
            name: operands[name].astype(np.float32) if code == BRAIN else operands[name] for name, code, _ in types
        }
        results = iter(zip(session.get_outputs(), session.run(None, feeds), strict=True))
        found: list[Array | None] = []
        for name in node.output:
            if not name:
                found.append(None)
                continue
            described, array = next(results)
            narrow = described.name.startswith("bfloat16:")
            found.append(
                np.asarray(array).astype(helper.tensor_dtype_to_np_dtype(BRAIN)) if narrow else np.asarray(array)
            )
        return found

    def _session(self, node: onnx.NodeProto, types: Sequence[tuple[str, int, int]]) -> ort.InferenceSession:
        """Return the session of `node`, whose results of bfloat16 are cast to float."""
        session = session_of(self._model(node, types, set()).SerializeToString())
        brains = {output.name for output in session.get_outputs() if output.type == "tensor(bfloat16)"}
        return session_of(self._model(node, types, brains).SerializeToString()) if brains else session

    def _model(self, node: onnx.NodeProto, types: Sequence[tuple[str, int, int]], brains: set[str]) -> onnx.ModelProto:
        """Return a model of `node`; bfloat16, of which numpy has no arrays for onnxruntime, goes in and out as float."""
        nodes, inputs = [], []
        for name, code, rank in types:
            inputs.append(
                helper.make_tensor_value_info(name, TensorProto.FLOAT if code == BRAIN else code, [None] * rank)
            )
        narrow = {name: f"{name} (bfloat16)" for name, code, _ in types if code == BRAIN}
        nodes += [helper.make_node("Cast", [name], [cast], to=BRAIN) for name, cast in narrow.items()]
        inner = onnx.NodeProto()
        inner.CopyFrom(node)
        inner.input[:] = [narrow.get(name, name) for name in node.input]
        nodes.append(inner)
        outputs = [onnx.ValueInfoProto(name=name) for name in node.output if name]
        for place, output in enumerate(outputs):
            if output.name in brains:
                shown = f"bfloat16:{output.name}"
                nodes.append(helper.make_node("Cast", [output.name], [shown], to=TensorProto.FLOAT))
                outputs[place] = helper.make_tensor_value_info(shown, TensorProto.FLOAT, None)
        graph = helper.make_graph(nodes, "one", inputs, outputs)
        imports = [helper.make_opsetid(domain, version) for domain, version in self._imports.items()]
        return helper.make_model(graph, opset_imports=imports, ir_version=self._ir_version, functions=self._functions)


@lru_cache(maxsize=1)
def fill() -> bytes:
    """Return bytes that no tensor has."""
    return bytes(np.random.default_rng(0).integers(0, 256, 1 << 16, np.uint8))
