"""Faults that ONNX's checker finds and onnxruntime accepts: operators and attributes that the opset lacks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import onnx

from onnxtile.errors import ModelError
from onnxtile.runtime import inferred_results

_ELSEWHERE = "pkg.onnxtile.unchecked"
"""A domain of which the checker knows no operators: it looks at none there."""

_STANDARD = frozenset({"", "ai.onnx"})
_CHECKED = {"", "ai.onnx.ml", "ai.onnx.preview.training", "ai.onnx.training"}
"""The domains whose operators the checker knows."""

_FREE_INITIALIZERS = 4
"""The first IR version in which an initializer need not be an input."""

_CHECKED_FUNCTIONS = 8
"""The first IR version in which the checker looks at the functions of a model."""


def require_valid(proto: onnx.ModelProto) -> None:
    """Raise onnx.checker.ValidationError where `proto` or a function in it does not keep to the ONNX specification."""
    onnx.checker.check_model(proto)
    for function in proto.functions if proto.ir_version < _CHECKED_FUNCTIONS else ():
        onnx.checker.check_function(function)


def runnable_oddities(proto: onnx.ModelProto) -> list[str]:
    """Return the objections of ONNX's checker to `proto`, a line an operator; none where more is wrong or onnxruntime objects too."""
    excused = onnx.ModelProto()
    excused.CopyFrom(proto)
    found = dict.fromkeys(_excuse(excused))
    if not found:
        return []
    excused.opset_import.append(onnx.helper.make_opsetid(_ELSEWHERE, 1))
    try:
        require_valid(excused)
        inferred_results(proto.SerializeToString())
    except (onnx.checker.ValidationError, UnicodeDecodeError, ModelError):
        return []
    return list(found)


def _excuse(model: onnx.ModelProto) -> Iterator[str]:
    """Put the odd nodes of `model` into a domain of their own, and yield what is odd."""
    inputs = {one.name for one in model.graph.input}
    if model.ir_version < _FREE_INITIALIZERS and any(one.name not in inputs for one in model.graph.initializer):
        yield f"IR version {model.ir_version} wants every initializer among the inputs; onnxruntime does not"
        model.ir_version = _FREE_INITIALIZERS
    yield from _excuse_nodes(model.graph.node, _versions(model))
    for function in model.functions:
        before = len(function.opset_import)
        for oddity in _excuse_nodes(function.node, _versions(function)):
            if len(function.opset_import) == before:
                function.opset_import.append(onnx.helper.make_opsetid(_ELSEWHERE, 1))
            yield oddity


def _versions(owner: onnx.ModelProto | onnx.FunctionProto) -> Mapping[str, int]:
    return {"" if one.domain in _STANDARD else one.domain: one.version for one in owner.opset_import}


def _excuse_nodes(nodes: Iterable[onnx.NodeProto], versions: Mapping[str, int]) -> Iterator[str]:
    for node in nodes:
        oddity = _oddity(node, versions)
        if oddity is not None:
            node.domain = _ELSEWHERE
            yield oddity
        for attribute in node.attribute:
            for graph in (attribute.g, *attribute.graphs):
                yield from _excuse_nodes(graph.node, versions)


def _oddity(node: onnx.NodeProto, versions: Mapping[str, int]) -> str | None:
    """Return the oddity of `node`; None where its domain is unknown to the checker."""
    domain = "" if node.domain in _STANDARD else node.domain
    version = versions.get(domain, 0)
    if not version or domain not in _CHECKED:
        return None
    shown = f"{node.op_type} in opset {version}" + (f" of {domain}" if domain else "")
    try:
        schema = onnx.defs.get_schema(node.op_type, version, domain)
    except onnx.defs.SchemaError:
        return f"ONNX has no operator {shown}; onnxruntime takes it"
    if schema.deprecated:
        return f"ONNX has given up the operator {shown}; onnxruntime takes it"
    unknown = [one.name for one in node.attribute if one.name not in schema.attributes]
    if not unknown:
        return None
    return f"ONNX knows no attribute {unknown[0]!r} of {shown}; onnxruntime takes it"
