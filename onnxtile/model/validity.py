"""The onnx checker, run on the graph without its weights."""

from __future__ import annotations

import math
import warnings
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

import onnx
import onnx_ir as ir
from google.protobuf.message import DecodeError, EncodeError
from onnx import numpy_helper

from onnxtile.model.functions import require_bounded_calls
from onnxtile.model.topology import drop_empty_notes, is_external, stored_bytes
from onnxtile.system.errors import ModelError, ModelWarning, first_cause
from onnxtile.system.runtime import inferred_results

# Faults that ONNX's checker finds and onnxruntime accepts: operators and attributes that the opset lacks.

_ELSEWHERE = "pkg.onnxtile.unchecked"
"""A domain that the checker does not know: it does not check the operators in it."""

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
    oddities = dict.fromkeys(_excuse(excused))
    if not oddities:
        return []
    excused.opset_import.append(onnx.helper.make_opsetid(_ELSEWHERE, 1))
    try:
        require_valid(excused)
        inferred_results(proto.SerializeToString())
    except (onnx.checker.ValidationError, UnicodeDecodeError, ModelError):
        return []
    return list(oddities)


def _excuse(model: onnx.ModelProto) -> Iterator[str]:
    """Put the odd nodes of `model` into a domain of their own, and yield what is odd."""
    inputs = {value.name for value in model.graph.input}
    if model.ir_version < _FREE_INITIALIZERS and any(value.name not in inputs for value in model.graph.initializer):
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
    return {"" if opset.domain in _STANDARD else opset.domain: opset.version for opset in owner.opset_import}


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
    unknown = [attribute.name for attribute in node.attribute if attribute.name not in schema.attributes]
    if not unknown:
        return None
    return f"ONNX knows no attribute {unknown[0]!r} of {shown}; onnxruntime takes it"


# Loops without a node in their body: onnxruntime looks between two nodes whether a run is to stop, so it cannot stop these.

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
            if node.op_type == "Loop" and node.domain in _STANDARD and not attribute.g.node:
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
    elements: list[int] = (
        numpy_helper.to_array(tensor).reshape(-1).tolist() if is_stated and max(tensor.dims, default=1) == 1 else []
    )
    return elements


INLINE_BYTES = 1024
"""Constants above this size are left out of what the checker and shape inference see."""
_LIST_BYTES = 64 * INLINE_BYTES
"""Those that may be shape operands, above this one: a Split into many pieces has a long list of their sizes."""


def is_small(tensor: ir.TensorProtocol) -> bool:
    """Return whether a constant is shown to all tools, and stays in the model where larger ones lie in an external file.

    onnxruntime refuses a model whose shape operands, lists of int64, lie in an external file.
    """
    size = stored_bytes(tensor)
    if size <= INLINE_BYTES:
        return True
    return size <= _LIST_BYTES and tensor.dtype == ir.DataType.INT64 and len(tensor.shape) == 1


def check(model: ir.Model) -> None:
    """Raise ModelError with the checker's reason unless `model` keeps to the ONNX specification.

    An operator that no schema and no function of the model defines is an error in the standard domains, unless onnxruntime loads the
    model: then it is a ModelWarning. Other domains are for the runtime to know.
    """
    _check(skeleton(model, described=False))


def check_proto(proto: onnx.ModelProto) -> None:
    """Raise ModelError with the checker's reason unless `proto` keeps to the ONNX specification; external data is not looked at."""
    if any(not tensor.name for tensor in proto.graph.initializer):
        raise ModelError("the model is not valid ONNX: an initializer has no name")
    _check(_light(proto))


def skeleton(model: ir.Model, *, described: bool = True, folded: bool = False) -> onnx.ModelProto:
    """Return `model`, which stays as it is, as a ModelProto in which large constants are typed inputs without their bytes.

    Large are those of the main graph that are not small (see `is_small`), be they initializers or Constant nodes. Smaller ones are in the
    ModelProto even where the model keeps them in an external file. Doc strings and metadata of nodes and their results are there where they
    are to be `described`: onnx_ir takes thrice as long to write them. With `folded`, Constant nodes of tensors are initializers, which mean
    the same to inference and are written sooner; not before IR version 4, in which initializers were inputs.
    """
    inputs = list(model.graph.inputs)
    kept, nodes = [], []
    for value in model.graph.initializers.values():
        tensor = _large(value)
        if tensor is None:
            kept.append(_with_bytes(value))
        elif not value.is_graph_input():
            inputs.append(_stand_in(value, tensor))
    for node in model.graph:
        constant = _large_constant(node)
        if constant is None:
            nodes.append(node)
        else:
            inputs.append(_stand_in(node.outputs[0], constant))
    if described:
        return _written(model, inputs, nodes, kept, {})
    proto = _written(model, inputs, (), kept, {})
    try:
        folds = folded and model.ir_version >= _FREE_INITIALIZERS
        for node in nodes:
            if not (folds and _is_folded(proto.graph, node)):
                _add_node(proto.graph, node)
    except (ValueError, TypeError, AttributeError, OSError, ir.serde.SerdeError) as error:
        raise _unwritable(error) from error
    return proto


def _is_folded(graph: onnx.GraphProto, node: ir.Node) -> bool:
    """Add the tensor of a Constant to `graph`, and return whether there is one."""
    tensor = _constant(node)
    if tensor is None or node.outputs[0].is_graph_output():
        return False
    ir.serde.serialize_tensor_into(graph.initializer.add(), tensor)
    graph.initializer[-1].name = node.outputs[0].name or ""
    return True


def _add_node(graph: onnx.GraphProto, node: ir.Node) -> None:
    """Add `node` to `graph`, with the types of its results where these are known."""
    outputs = node.outputs
    names: list[Any] = [value.name for value in outputs]
    while names and not names[-1]:
        names.pop()
    proto = graph.node.add(
        op_type=node.op_type,
        domain=node.domain,
        name=node.name or "",
        overload=node.overload,
        input=["" if value is None else value.name for value in node.inputs],
        output=names,
    )
    for attribute in node.attributes.data.values():
        if attribute.is_ref():
            ir.serde.serialize_reference_attribute_into(proto.attribute.add(), attribute)
        else:
            ir.serde.serialize_attribute_into(proto.attribute.add(), attribute)
    for value in outputs:
        if (value.type is not None or value.shape is not None) and value.name and not value.is_graph_output():
            ir.serde.serialize_value_into(graph.value_info.add(), value)


def _unwritable(error: Exception) -> ModelError:
    return ModelError(f"the model cannot be written: {first_cause(error)}")


def without_weights(model: ir.Model) -> onnx.ModelProto:
    """Return `model`, which stays as it is, as a ModelProto with all its nodes, in which large constants have types and no bytes.

    Large are those of `skeleton`. They are in a file that is not there.
    """
    graph = model.graph
    constants = ((value, _large(value)) for value in graph.initializers.values())
    kept = [_with_bytes(value) if tensor is None else _without_bytes(value, tensor) for value, tensor in constants]
    nodes = [node if (constant := _large_constant(node)) is None else _bare(node, constant) for node in graph]
    proto = _written(model, graph.inputs, nodes, kept, graph.metadata_props)
    drop_empty_notes(value for node in nodes for value in node.outputs)
    return proto


def _nowhere(tensor: ir.TensorProtocol, name: str | None) -> ir.ExternalTensor:
    return ir.ExternalTensor("weights", 0, 0, tensor.dtype, shape=ir.Shape(tensor.shape.numpy()), name=name or "")


def _without_bytes(value: ir.Value, tensor: ir.TensorProtocol) -> ir.Value:
    copy = _stand_in(value, tensor)
    copy.const_value = _nowhere(tensor, value.name)
    copy.metadata_props.update(value.metadata_props)
    return copy


def _bare(node: ir.Node, constant: ir.TensorProtocol) -> ir.Node:
    """Return a node like the Constant `node`, without its bytes."""
    value = node.outputs[0]
    outputs = [_stand_in(value, constant)]
    outputs[0].metadata_props.update(value.metadata_props)
    attributes = [ir.AttrTensor("value", _nowhere(constant, ""))]
    metadata = dict(node.metadata_props)
    return ir.Node(node.domain, node.op_type, [], attributes, outputs=outputs, name=node.name, metadata_props=metadata)


def _written(
    model: ir.Model,
    inputs: Sequence[ir.Value],
    nodes: Iterable[ir.Node],
    initializers: Sequence[ir.Value],
    metadata: Mapping[str, str],
) -> onnx.ModelProto:
    """Return `model` as a ModelProto whose main graph has these inputs, nodes, initializers and metadata."""
    graph = model.graph
    view = ir.GraphView(
        inputs, graph.outputs, nodes=nodes, initializers=initializers, opset_imports=graph.opset_imports,
        name=graph.name, metadata_props=dict(metadata),
    )  # fmt: skip
    # A graph view is what the serialiser takes in a graph's place; the annotation of Model has not heard of it.
    bare = ir.Model(view, ir_version=model.ir_version, functions=list(model.functions.values()))  # type: ignore[arg-type]
    try:
        return ir.to_proto(bare)
    except (ValueError, TypeError, AttributeError, OSError, ir.serde.SerdeError) as error:
        raise _unwritable(error) from error


def _shapeless(proto: onnx.ModelProto) -> str | None:
    """Return what to do about an input or output without a shape, which the checker does not name; None where all have one."""
    for value in (*proto.graph.input, *proto.graph.output):
        if value.type.HasField("tensor_type") and not value.type.tensor_type.HasField("shape"):
            return f"declare a shape for {value.name!r}; its dimensions may be open"
    return None


def _unsorted(reason: str) -> str | None:
    """Return what helps where nodes are out of order, as onnxruntime's conversion to float16 leaves them."""
    is_so = "topologically sorted" in reason
    return "sort its nodes, as onnx_ir.passes.common.TopologicalSortPass does" if is_so else None


def _check(proto: onnx.ModelProto) -> None:
    has_bodies = require_bounded_calls(proto)
    try:
        require_valid(proto)
    except (onnx.checker.ValidationError, UnicodeDecodeError) as error:
        oddities = runnable_oddities(proto)
        if not oddities:
            reason = str(error).split("==> Context", maxsplit=1)[0]
            hint = _too_new(proto) or _shapeless(proto) or _unsorted(reason)
            raise ModelError(f"the model is not valid ONNX: {' '.join(reason.split())}", hint=hint) from None
        for oddity in oddities:
            warnings.warn(oddity, ModelWarning, stacklevel=4)
    except (ValueError, EncodeError, DecodeError) as error:
        raise ModelError(f"the model cannot be checked: {' '.join(str(error).split())}") from None
    if has_bodies:
        require_few_empty_turns(proto)


def _too_new(proto: onnx.ModelProto) -> str | None:
    """Return the hint for a model whose opset is newer than those that the checker knows; None for any other."""
    version, newest = _versions(proto).get("", 0), onnx.defs.onnx_opset_version()
    known = f"onnx {onnx.__version__} knows opsets up to {newest}"
    return f"the model has opset {version}, and {known}: export it with one of these" if version > newest else None


def _light(proto: onnx.ModelProto) -> onnx.ModelProto:
    """Return a copy of `proto` in which external and large constants are typed inputs: nothing large is copied."""
    light = onnx.ModelProto()
    for name in ("ir_version", "model_version", "domain"):
        if proto.HasField(name):
            setattr(light, name, getattr(proto, name))
    light.opset_import.extend(proto.opset_import)
    light.functions.extend(proto.functions)
    light.metadata_props.extend(proto.metadata_props)
    graph, old = light.graph, proto.graph
    graph.name = old.name
    graph.input.extend(old.input)
    graph.output.extend(old.output)
    graph.value_info.extend(old.value_info)
    inputs = {info.name for info in old.input}
    for tensor in old.initializer:
        if _is_light(tensor):
            graph.initializer.append(tensor)
        elif tensor.name not in inputs:
            graph.input.append(onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims))
    graph.node.extend(_light_nodes(graph, old.node))
    return light


def _light_nodes(graph: onnx.GraphProto, nodes: Iterable[onnx.NodeProto]) -> Iterable[onnx.NodeProto]:
    for node in nodes:
        tensor = _held(node)
        if tensor is None or _is_light(tensor):
            yield node
        else:
            graph.input.append(onnx.helper.make_tensor_value_info(node.output[0], tensor.data_type, tensor.dims))


def _held(node: onnx.NodeProto) -> onnx.TensorProto | None:
    if node.op_type != "Constant" or len(node.output) != 1 or len(node.attribute) != 1:
        return None
    attribute = node.attribute[0]
    return attribute.t if attribute.name == "value" and attribute.HasField("t") else None


def _is_light(tensor: onnx.TensorProto) -> bool:
    # To tell a message's size protobuf writes all of it, so a large one is known by its shape.
    most = _LIST_BYTES if tensor.data_type == onnx.TensorProto.INT64 and len(tensor.dims) == 1 else INLINE_BYTES
    small = tensor.data_location != onnx.TensorProto.EXTERNAL and math.prod(tensor.dims) <= most
    return small and tensor.ByteSize() <= most


def _large(value: ir.Value) -> ir.TensorProtocol | None:
    """Return the tensor of an initializer, None where it is small."""
    tensor = value.const_value
    return None if tensor is None or is_small(tensor) else tensor


def _large_constant(node: ir.Node) -> ir.TensorProtocol | None:
    """Return the tensor of a Constant node, None where it is small and in the model."""
    tensor = _constant(node)
    return None if tensor is None or (is_small(tensor) and not is_external(tensor)) else tensor


def _constant(node: ir.Node) -> ir.TensorProtocol | None:
    """Return the tensor of a Constant node, None for other nodes and other forms."""
    attribute = None if node.op_type != "Constant" or node.domain else node.attributes.data.get("value")
    if attribute is None or attribute.is_ref() or len(node.outputs) != 1:
        return None
    tensor: ir.TensorProtocol = attribute.value
    return tensor


def _stand_in(value: ir.Value, tensor: ir.TensorProtocol) -> ir.Value:
    return ir.Value(name=value.name, shape=ir.Shape(tensor.shape.numpy()), type=ir.TensorType(tensor.dtype))


def _with_bytes(value: ir.Value) -> ir.Value:
    """Return `value`, or one like it whose tensor is in memory where that of `value` is in a file."""
    tensor = value.const_value
    if tensor is None or not is_external(tensor):
        return value
    inline = ir.Tensor(tensor.numpy(), dtype=tensor.dtype, shape=ir.Shape(tensor.shape), name=tensor.name)
    return ir.Value(name=value.name, shape=value.shape, type=value.type, const_value=inline)
