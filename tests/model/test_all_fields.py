"""All that a model file can say is in the file that is written, and in the caller's own model afterwards."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from google.protobuf.message import Message
from onnx import TensorProto, helper, numpy_helper

from onnxtile import api
from onnxtile.fusion.fuse import fuse
from onnxtile.model.load import load
from onnxtile.model.opset import raised
from onnxtile.model.save import save
from onnxtile.system.errors import ModelWarning
from onnxtile.tiling.limits import Limits

TEXT = """<ir_version: 11, opset_import: ["" : 17, "local" : 1]>
g (float[4, 8] x, bool c) => (float[4, 8] y) {
    k = Constant<value = float {2.0}>()
    z = Constant<value = float {0.0}>()
    h = MatMul(x, w)
    i = Add(h, b)
    j = If(c) <
        then_branch = t () => (float[4, 8] r) { q = Relu(i) r = Abs(q) },
        else_branch = e () => (float[4, 8] s) { s = Neg(i) }
    >
    l = local.f<alpha = 2.0>(j)
    m = Mul(l, k)
    o = Add(m, z)
    y = Sub(o, n)
}
<domain: "local", opset_import: ["" : 17]>
f <alpha: float = 1.0> (p) => (o) {
    u = Constant<value = float {3.0}>()
    v = LeakyRelu<alpha: float = @alpha>(p)
    o = Mul(u, v)
}
"""


def say(message: Any, *, tensors: bool) -> None:
    """Fill the doc string and the metadata of `message` and of all messages in it."""
    fields = message.DESCRIPTOR.fields_by_name
    if isinstance(message, onnx.StringStringEntryProto) or (isinstance(message, TensorProto) and not tensors):
        return
    for _, value in message.ListFields():
        for one in value if not isinstance(value, Message) and hasattr(value, "__len__") else [value]:
            if isinstance(one, Message):
                say(one, tensors=tensors)
    own = f"{message.DESCRIPTOR.name} {getattr(message, 'name', '')}"
    if "doc_string" in fields:
        message.doc_string = f"of {own}"
    if "metadata_props" in fields:
        message.metadata_props.add(key="mine", value=own)


def full(*, devices: bool) -> onnx.ModelProto:
    """Return a model that says all that it can, with tensors that have no names of their own."""
    proto = onnx.parser.parse_model(TEXT)
    graph = proto.graph
    arrays = {"w": np.ones((8, 8)), "b": np.ones(8), "n": np.ones(1), "unread": np.ones(400)}
    for name, array in arrays.items():
        graph.initializer.append(numpy_helper.from_array(array.astype(np.float32), name))
    graph.initializer.append(helper.make_tensor("typed", TensorProto.FLOAT, [2], [1, 2]))
    graph.initializer.append(numpy_helper.from_array(np.array(["a"], object), "text"))
    for node in [*graph.node, *proto.functions[0].node]:
        node.name = f"N{node.output[0]}"
        for attribute in [one for one in node.attribute if one.HasField("t")]:
            attribute.t.ClearField("name")
    graph.value_info.extend(helper.make_tensor_value_info(name, TensorProto.FLOAT, [4, 8]) for name in "hi")
    proto.functions[0].value_info.append(helper.make_tensor_value_info("v", TensorProto.FLOAT, [4, 8]))
    for value in (*graph.input, *graph.output, *graph.value_info):
        value.type.denotation = "TENSOR"
        for dim in value.type.tensor_type.shape.dim:
            dim.denotation = "DATA_BATCH"
    for name in ("h", "x", "y", "w"):
        annotation = graph.quantization_annotation.add(tensor_name=name)
        annotation.quant_parameter_tensor_names.add(key="SCALE_TENSOR", value=f"{name}_scale")
    proto.producer_name, proto.producer_version, proto.domain, proto.model_version = "p", "1", "d", 3
    training = proto.training_info.add()
    training.initialization.name, training.algorithm.name = "first", "step"
    training.algorithm.initializer.append(numpy_helper.from_array(np.ones(1, np.float32), "rate"))
    training.initialization_binding.add(key="w", value="w_first")
    training.update_binding.add(key="rate", value="rate_new")
    proto.configuration.add(name="two", num_devices=2, device=["a", "b"])
    say(proto, tensors=True)
    for node in [*graph.node, *proto.functions[0].node] if devices else []:
        place = node.device_configurations.add(configuration_id="two", pipeline_stage=1)
        place.sharding_spec.add(tensor_name=node.output[0], device=[0])
    return proto


def said(message: Message, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield each thing that a message says, once for each time: where, by names in place of numbers, and what."""
    for field, value in message.ListFields():
        if value == "":
            continue  # as if it were not said
        repeated = not isinstance(value, Message | str | bytes) and hasattr(value, "__len__")
        for one in value if repeated else [value]:
            if not isinstance(one, Message):
                yield f"{path}.{field.name}", one
                continue
            names = [getattr(one, name, "") for name in ("key", "name", "tensor_name")]
            yield from said(one, f"{path}.{field.name}[{next(filter(None, names), '')}]")


def by_meaning(proto: onnx.ModelProto) -> list[tuple[str, str]]:
    """Return all that `proto` says, without the types of constants, which onnx_ir writes beside their tensors, too."""
    copy = onnx.ModelProto.FromString(proto.SerializeToString())
    constants = {tensor.name for tensor in copy.graph.initializer}
    for info in [one for one in copy.graph.value_info if one.name in constants]:
        copy.graph.value_info.remove(info)
    return sorted((path, repr(what)) for path, what in said(copy))


def written(model: ir.Model, path: Path) -> onnx.ModelProto:
    save(model, path)
    return onnx.load(path)


@pytest.mark.parametrize("devices", [False, True])
def test_nothing_that_a_file_says_is_lost(tmp_path: Path, devices: bool) -> None:
    proto = full(devices=devices)
    onnx.save(proto, tmp_path / "in.onnx")
    for source in (proto, tmp_path / "in.onnx"):
        assert by_meaning(written(load(source), tmp_path / "out.onnx")) == by_meaning(proto)
        assert by_meaning(written(load(source).clone(), tmp_path / "out.onnx")) == by_meaning(proto)
    again = load(tmp_path / "out.onnx")
    assert by_meaning(written(again, tmp_path / "again.onnx")) == by_meaning(proto)


def test_a_large_file_loses_nothing_either(tmp_path: Path) -> None:
    proto = full(devices=True)
    proto.graph.initializer.append(numpy_helper.from_array(np.ones((600, 600), np.float32), "large"))
    say(proto.graph.initializer[-1], tensors=True)
    onnx.save(proto, tmp_path / "in.onnx")
    assert by_meaning(written(load(tmp_path / "in.onnx"), tmp_path / "out.onnx")) == by_meaning(proto)
    onnx.save(
        proto, tmp_path / "out.onnx", save_as_external_data=True, location="w", size_threshold=0, convert_attribute=True
    )
    outside = by_meaning(onnx.load(tmp_path / "out.onnx", load_external_data=False))
    back = written(load(tmp_path / "out.onnx"), tmp_path / "again.onnx")
    docs = [(path, what) for path, what in outside if "doc_string" in path or "metadata" in path]
    assert [one for one in by_meaning(back) if one in docs] == docs


VERBS: dict[str, Callable[[Any], object]] = {
    "load": load,
    "inspect": lambda model: api.inspect(model, training=True),
    "match": lambda model: api.match(model, "MatMul"),
    "explain": lambda model: api.explain(model, "MatMul->Add"),
    "fuse": lambda model: api.fuse(model, ["MatMul->Add", "Mul->Add"]),
    "lower": lambda model: api.fuse(model, ["Linear"], lower="onnx"),
    "tile": lambda model: api.tile(model, Limits.of(max=4)),
    "plan": api.plan,
    "verify": lambda model: api.verify(model, model),
    "trace": lambda model: api.trace(model, ["MatMul"]),
    "pattern": lambda model: api.draft_pattern(model, ["Nh", "Ni"], "Mine"),
}


@pytest.mark.parametrize("verb", VERBS)
def test_a_verb_leaves_the_callers_model_as_it_is(verb: str) -> None:
    proto = full(devices=False)
    before = proto.SerializeToString()
    VERBS[verb](proto)
    assert proto.SerializeToString() == before
    model = ir.from_proto(full(devices=False))
    known = ir.to_proto(model).SerializeToString()
    VERBS[verb](model)
    assert ir.to_proto(model).SerializeToString() == known


def test_unfuse_leaves_the_callers_model_as_it_is() -> None:
    fused = ir.to_proto(api.fuse(full(devices=False), ["MatMul->Add", "Mul->Add"]).model)
    before = fused.SerializeToString()
    api.unfuse(fused)
    assert fused.SerializeToString() == before


@pytest.mark.parametrize("opset", [17, 20])
def test_unfuse_gives_all_back(tmp_path: Path, opset: int) -> None:
    proto = full(devices=False)
    proto.opset_import[0].version = proto.functions[0].opset_import[0].version = opset
    fused = api.fuse(proto, ["MatMul->Add", "Mul-*>Add", "Sub;"]).model
    assert sum(function.domain == "onnxtile" for function in fused.functions.values()) == 3
    save(fused, tmp_path / "fused.onnx")
    restored = api.unfuse(tmp_path / "fused.onnx").model
    assert by_meaning(written(restored, tmp_path / "out.onnx")) == by_meaning(proto)


def test_nodes_that_are_placed_on_devices_are_not_fused(tmp_path: Path) -> None:
    model = load(full(devices=True))
    from onnxtile.fusion.pattern import select

    (result,) = fuse(model, select(["MatMul->Add"]))
    assert [refused.reason for refused in result.refused] == [
        "MatMul is placed on devices, which a function does not say"
    ]
    assert by_meaning(written(model, tmp_path / "out.onnx")) == by_meaning(full(devices=True))


def test_a_raised_model_keeps_training_and_devices(tmp_path: Path) -> None:
    proto = written(raised(load(full(devices=True)), 18), tmp_path / "out.onnx")
    before = full(devices=True)
    assert proto.training_info == before.training_info
    assert proto.configuration == before.configuration
    placed = {node.name: node.device_configurations for node in before.graph.node}
    assert all(node.device_configurations == placed[node.name] for node in proto.graph.node if node.name in placed)


def test_training_that_binds_what_is_gone_is_named(tmp_path: Path) -> None:
    model = load(full(devices=False))
    model.graph.initializers["w"].name = "v"
    with pytest.warns(ModelWarning, match="binds 'w'"):
        proto = written(model, tmp_path / "out.onnx")
    assert not proto.training_info


def test_tiles_of_a_placed_node_are_named() -> None:
    with pytest.warns(ModelWarning, match="the tiles of 'Nh'"):
        api.tile(full(devices=True), Limits.of(max=4), verify=False)


WRITERS: dict[str, Callable[[Any], Any]] = {
    "fuse": lambda model: api.fuse(model, ["MatMul->Add"]),
    "lower": lambda model: api.fuse(model, lower="onnx"),
    "tile": lambda model: api.tile(model, Limits.of(max=4)),
    "plan": api.plan,
    "fit": lambda model: api.fit(model, capacity=2**20),
    "cut": lambda model: api.fit(model, capacity=8 * 1024, budget="100%"),
}


@pytest.mark.parametrize("verb", WRITERS)
@pytest.mark.parametrize("ir_version", [3, 8])
def test_what_a_verb_cannot_write_again_is_named(verb: str, ir_version: int, tmp_path: Path) -> None:
    proto = image(ir_version)
    onnx.save(proto, tmp_path / "in.onnx")
    result = WRITERS[verb](tmp_path / "in.onnx")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", ModelWarning)
        result.save(tmp_path / "out.onnx")
    after, said_so = onnx.load(tmp_path / "out.onnx"), " ".join(str(one.message) for one in caught)
    lost = {
        "binds 'w'": bool(proto.training_info) and not after.training_info,
        "'k' and 2 more inputs": len(proto.graph.input) > 1 and len(after.graph.input) == 1,
    }
    assert {words for words, is_lost in lost.items() if is_lost} == {words for words in lost if words in said_so}
    assert proto.metadata_props[0] in after.metadata_props
    assert (after.doc_string, after.graph.doc_string) == ("of the model", "of the graph")
    assert [one.tensor_name for one in after.graph.quantization_annotation] == ["x"]


def image(ir_version: int) -> onnx.ModelProto:
    """Return a model of opset 8 that can be trained; its constants are inputs, too, where its IR version asks for that."""
    text = f"""<ir_version: {ir_version}, opset_import: ["" : 8]>
        g (float[1, 3, 16, 16] x) => (float[1, 8] y) {{
            c = Conv<pads = [1, 1, 1, 1]>(x, k) r = Relu(c) p = GlobalAveragePool(r) f = Flatten(p) m = MatMul(f, w) y = Add(m, b)
        }}"""
    proto = onnx.parser.parse_model(text)
    arrays = {"k": np.ones((8, 3, 3, 3)), "w": np.ones((8, 8)), "b": np.ones(8)}
    tensors = [numpy_helper.from_array(array.astype(np.float32), name) for name, array in arrays.items()]
    proto.graph.initializer.extend(tensors)
    if ir_version < 4:
        proto.graph.input.extend(helper.make_tensor_value_info(one.name, one.data_type, one.dims) for one in tensors)
    proto.doc_string, proto.graph.doc_string = "of the model", "of the graph"
    proto.metadata_props.add(key="mine", value="of the model")
    annotation = proto.graph.quantization_annotation.add(tensor_name="x")
    annotation.quant_parameter_tensor_names.add(key="SCALE_TENSOR", value="b")
    training = proto.training_info.add()
    training.algorithm.name = "step"
    training.update_binding.add(key="w", value="w_new")
    return proto
