"""The bench on which all tests of this room fuse a model, run it, undo it and compare."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from onnxtile import api
from onnxtile.fusion.fuse import PatternResult
from onnxtile.fusion.pattern import Pattern, from_file
from onnxtile.model.load import external_tensors, load
from onnxtile.model.preserved import note_outputs
from onnxtile.model.save import to_bytes
from onnxtile.model.session import session_of
from onnxtile.verification.trials import run_original

AIDGE = Path(__file__).parent.parent.parent / "patterns" / "aidge"
LINEAR = from_file(AIDGE / "linear.toml")
FIVE = (
    LINEAR,
    *(
        from_file(AIDGE / f"{name}.toml")
        for name in ("layer_norm", "scaled_dot_product_attention", "multi_head_attention", "gelu")
    ),
)
Source = str | Path | onnx.ModelProto | ir.Model


@dataclass(frozen=True)
class Fused:
    """A model, and what fuse made of it."""

    original: ir.Model = field(repr=False)
    model: ir.Model = field(repr=False)
    patterns: tuple[PatternResult, ...]

    @property
    def counts(self) -> list[int]:
        """How many meta-ops each pattern made."""
        return [len(pattern.calls) for pattern in self.patterns]

    @property
    def refusals(self) -> list[str]:
        """Why matches were left alone."""
        return [refused.reason for pattern in self.patterns for refused in pattern.refused]

    @property
    def ops(self) -> list[str]:
        """The operators of the main graph, in order."""
        return [node.op_type for node in self.model.graph]

    def node(self, op: str) -> ir.Node:
        """Return the first node of this operator, in any graph."""
        return next(node for node in self.model.graph.all_nodes() if node.op_type == op)


class Lab:
    """What the tests do with a model."""

    five = FIVE
    """The patterns of the set `aidge`, in the order in which they need each other."""

    linear = LINEAR

    @staticmethod
    def text(graph: str, *, functions: str = "", opset: int = 17, ir_version: int = 10) -> onnx.ModelProto:
        """Return the model of ONNX text: its graph, and its functions."""
        opsets = f'"": {opset}, "local": 1, "com.microsoft": 1'
        head = f"<ir_version: {ir_version}, opset_import: [{opsets}]>"
        return onnx.parser.parse_model(f"{head} {graph} {functions}")

    @staticmethod
    def fuse(source: Source, *patterns: str | Pattern, verify: bool = True) -> Fused:
        """Fuse a copy of `source`, as the command does."""
        result = api.fuse(source, patterns, verify=verify)
        return Fused(load(source), result.model, result.patterns)

    def sound(self, source: Source, *patterns: str | Pattern) -> Fused:
        """Fuse `source`, and assert what always holds: same bits, restored by unfuse, and fused again to the same bytes."""
        fused = self.fuse(source, *patterns)
        self.require_same_bits(fused.original, fused.model)
        restored = self.require_restored(fused)
        again = api.fuse(restored, patterns, verify=False)
        assert to_bytes(again.model) == to_bytes(fused.model)
        return fused

    @staticmethod
    def require_same_bits(original: ir.Model, other: ir.Model) -> None:
        """Assert that onnxruntime computes the same bits with both, without and with its own optimisation."""
        trials, _ = run_original(original)
        runner = session_of(other)
        for trial in trials:
            got = runner.run(trial.feeds)
            assert got.keys() == trial.results.keys()
            for name, expected in trial.results.items():
                np.testing.assert_array_equal(np.asarray(got[name]), np.asarray(expected), err_msg=name)

    def require_restored(self, fused: Fused) -> ir.Model:
        """Assert that what was fused, written and read again unfuses to the original; return that."""
        if not any(fused.counts):
            self.require_same_meaning(fused.original, fused.model)
            return fused.model
        return self.require_undone(fused.original, fused.model)

    def require_undone(self, original: ir.Model, fused: ir.Model) -> ir.Model:
        """Assert that `fused`, written and read again, is valid and unfuses to `original`; return what it unfuses to."""
        written = onnx.ModelProto.FromString(to_bytes(fused))
        if not external_tensors(fused):
            onnx.checker.check_model(written)
        restored = api.unfuse(_with_folder(written, fused), verify=False).model
        self.require_same_meaning(original, restored)
        return restored

    def require_same_meaning(self, expected: ir.Model, got: ir.Model) -> None:
        """Assert that both models say the same, part by part."""
        a, b = self.meaning(expected), self.meaning(got)
        assert a.keys() == b.keys()
        for part, one in a.items():
            assert one == b[part], part

    @staticmethod
    def meaning(model: ir.Model) -> dict[str, Any]:
        """Return all that a model says, after one round trip through onnx-ir."""
        proto = ir.to_proto(ir.from_proto(ir.to_proto(model)))
        return {
            "ir_version": proto.ir_version,
            "opsets": {o.domain: o.version for o in proto.opset_import},
            "header": (
                proto.producer_name,
                proto.producer_version,
                proto.domain,
                proto.model_version,
                proto.doc_string,
            ),
            "metadata": _props(proto),
            "functions": {(f.domain, f.name, f.overload): _function(f) for f in proto.functions},
            **_graph(proto.graph),
        }


def _with_folder(proto: onnx.ModelProto, like: ir.Model) -> ir.Model:
    """Return the model of `proto`, its external data found where that of `like` is."""
    model = ir.from_proto(proto)
    note_outputs(proto, model)
    for value in model.graph.initializers.values():
        twin = like.graph.initializers[value.name or ""].const_value
        if isinstance(value.const_value, ir.ExternalTensor) and isinstance(twin, ir.ExternalTensor):
            value.const_value = twin
    return model


def _graph(graph: onnx.GraphProto) -> dict[str, Any]:
    return {
        "name": (graph.name, graph.doc_string, _props(graph)),
        "nodes": [_node(node) for node in graph.node],
        "inputs": [_bytes(value) for value in graph.input],
        "outputs": [_bytes(value) for value in graph.output],
        "initializers": {tensor.name: _tensor(tensor) for tensor in graph.initializer},
        "value_info": _value_info(graph.value_info),
        "quantization": {_bytes(annotation) for annotation in graph.quantization_annotation},
    }


def _function(function: onnx.FunctionProto) -> dict[str, Any]:
    return {
        "inputs": list(function.input),
        "outputs": list(function.output),
        "attributes": (list(function.attribute), [_bytes(a) for a in function.attribute_proto]),
        "opsets": {o.domain: o.version for o in function.opset_import},
        "doc": (function.doc_string, _props(function)),
        "nodes": [_node(node) for node in function.node],
        "value_info": _value_info(function.value_info),
    }


def _node(node: onnx.NodeProto) -> tuple[Any, ...]:
    attributes = {a.name: _attribute(a) for a in node.attribute}
    head = (node.domain, node.op_type, node.overload, node.name, node.doc_string)
    return (*head, list(node.input), list(node.output), attributes, _props(node))


def _attribute(attribute: onnx.AttributeProto) -> Any:
    if attribute.HasField("g"):
        return _graph(attribute.g)
    return _tensor(attribute.t) if attribute.HasField("t") else _bytes(attribute)


def _tensor(tensor: onnx.TensorProto) -> tuple[Any, ...]:
    """Return what a tensor says; the field that holds its elements is a matter of form."""
    one = ir.from_proto(tensor)
    place = (
        one.location
        if isinstance(one, ir.ExternalTensor)
        else one.tobytes()
        if one.dtype != ir.DataType.STRING
        else one.numpy().tolist()
    )
    return one.name, one.dtype, tuple(one.shape), one.doc_string, _props(tensor), place


def _value_info(infos: Iterable[onnx.ValueInfoProto]) -> dict[str, tuple[Any, ...]]:
    return {info.name: (str(info.type), info.doc_string, _props(info)) for info in infos}


def _props(proto: Any) -> dict[str, str]:
    return {prop.key: prop.value for prop in proto.metadata_props}


def _bytes(proto: Any) -> bytes:
    data: bytes = proto.SerializeToString(deterministic=True)
    return data


@pytest.fixture(scope="session")
def lab() -> Lab:
    """Return the bench."""
    return Lab()
