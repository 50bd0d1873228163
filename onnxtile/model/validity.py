"""The onnx checker, run on the graph without its weights."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable

import onnx
import onnx_ir as ir
from google.protobuf.message import DecodeError, EncodeError

from onnxtile.errors import ModelError, ModelWarning, first_cause
from onnxtile.model.calls import require_bounded_calls
from onnxtile.model.empty_loops import require_few_empty_turns
from onnxtile.model.oddities import require_valid, runnable_oddities

INLINE_BYTES = 1024
"""Constants above this size are left out of what the checker and shape inference see; shape operands are always below it."""


def check(model: ir.Model) -> None:
    """Raise ModelError with the checker's reason unless `model` keeps to the ONNX specification.

    An operator that no schema and no function of the model defines is an error in the standard domains, unless onnxruntime loads the
    model: then it is a ModelWarning. Other domains are for the runtime to know.
    """
    _check(skeleton(model))


def check_proto(proto: onnx.ModelProto) -> None:
    """Raise ModelError with the checker's reason unless `proto` keeps to the ONNX specification; external data is not looked at."""
    if any(not tensor.name for tensor in proto.graph.initializer):
        raise ModelError("the model is not valid ONNX: an initializer has no name")
    _check(_light(proto))


def skeleton(model: ir.Model) -> onnx.ModelProto:
    """Return `model`, which stays as it is, as a ModelProto in which large constants are typed inputs without their bytes.

    Large are those of the main graph that take more than INLINE_BYTES, be they initializers or Constant nodes. Smaller ones are in the
    ModelProto even where the model keeps them in an external file.
    """
    graph = model.graph
    inputs = list(graph.inputs)
    kept = []
    for value in graph.initializers.values():
        tensor = value.const_value
        if tensor is None or _inline(tensor):
            kept.append(_with_bytes(value))
        elif not value.is_graph_input():
            inputs.append(_stand_in(value, tensor))
    nodes = []
    for node in graph:
        constant = _constant(node)
        if constant is None or (_inline(constant) and not isinstance(constant, ir.ExternalTensor)):
            nodes.append(node)
        else:
            inputs.append(_stand_in(node.outputs[0], constant))
    view = ir.GraphView(
        inputs, graph.outputs, nodes=nodes, initializers=kept, opset_imports=graph.opset_imports, name=graph.name
    )
    # A graph view is what the serialiser takes in a graph's place; the annotation of Model has not heard of it.
    shell = ir.Model(view, ir_version=model.ir_version, functions=list(model.functions.values()))  # type: ignore[arg-type]
    try:
        return ir.to_proto(shell)
    except (ValueError, TypeError, AttributeError, OSError, ir.serde.SerdeError) as error:
        raise ModelError(f"the model cannot be written: {first_cause(error)}") from error


def _check(proto: onnx.ModelProto) -> None:
    require_bounded_calls(proto)
    try:
        require_valid(proto)
    except (onnx.checker.ValidationError, UnicodeDecodeError) as error:
        oddities = runnable_oddities(proto)
        if not oddities:
            reason = str(error).split("==> Context", maxsplit=1)[0]
            raise ModelError(f"the model is not valid ONNX: {' '.join(reason.split())}") from None
        for oddity in oddities:
            warnings.warn(oddity, ModelWarning, stacklevel=4)
    except (ValueError, EncodeError, DecodeError) as error:
        raise ModelError(f"the model cannot be checked: {' '.join(str(error).split())}") from None
    require_few_empty_turns(proto)


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
    small = tensor.data_location != onnx.TensorProto.EXTERNAL and math.prod(tensor.dims) <= INLINE_BYTES
    return small and tensor.ByteSize() <= INLINE_BYTES


def _inline(tensor: ir.TensorProtocol) -> bool:
    return tensor.nbytes <= INLINE_BYTES


def _constant(node: ir.Node) -> ir.TensorProtocol | None:
    """Return the tensor of a Constant node, None for other nodes and other forms (which are small)."""
    if node.op_type != "Constant" or node.domain not in {"", "ai.onnx"} or len(node.outputs) != 1:
        return None
    attribute = node.attributes.get("value")
    return None if attribute is None or attribute.is_ref() else attribute.value


def _stand_in(value: ir.Value, tensor: ir.TensorProtocol) -> ir.Value:
    return ir.Value(name=value.name, shape=ir.Shape(tensor.shape.numpy()), type=ir.TensorType(tensor.dtype))


def _with_bytes(value: ir.Value) -> ir.Value:
    """Return `value`, or one like it whose tensor is in memory where that of `value` is in a file."""
    tensor = value.const_value
    if not isinstance(tensor, ir.ExternalTensor):
        return value
    inline = ir.Tensor(tensor.numpy(), dtype=tensor.dtype, shape=ir.Shape(tensor.shape), name=tensor.name)
    return ir.Value(name=value.name, shape=value.shape, type=value.type, const_value=inline)
