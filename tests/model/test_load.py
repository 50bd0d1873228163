"""Loading: whatever comes in, a model comes out or a ModelError."""

from __future__ import annotations

import gc
import os
import random
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

import onnxtile
from onnxtile.model.constants import Constants
from onnxtile.model.load import MOST_BYTES, densely, digest, external_tensors, load
from onnxtile.model.save import to_bytes
from onnxtile.shapes.resolve import resolve
from onnxtile.system.errors import ModelError, ModelWarning, OnnxtileError
from onnxtile.system.runtime import Session
from tests import build
from tests.build import Text
from tests.draws import draws

SEED = onnx.parser.parse_model(
    """<ir_version: 10, opset_import: ["": 17, "local": 1]>
    g (float[N, 1] x) => (float[N, 8] y) <float[1, 8] w = {1, 2, 3, 4, 5, 6, 7, 8}, int64[2] s = {-1, 8}> {
      c = Constant <value_ints = [1, 2]> ()
      a = MatMul(x, w)
      b = Reshape(a, s)
      e = local.act(b)
      t = Constant <value = bool {1}> ()
      y = If (t) <then_branch = tg () => (float[N, 8] tb) { tb = Relu(e) },
                  else_branch = eg () => (float[N, 8] eb) { k = Constant <value = float {2}> () eb = Mul(e, k) }>
    }
    <domain: "local", opset_import: ["": 17]> act (x) => (y) { h = Sigmoid(x) y = Mul(x, h) }"""
).SerializeToString()


def refused(path: Path) -> str:
    with pytest.raises(ModelError) as caught:
        load(path)
    message = str(caught.value)
    assert message.startswith(str(path))
    assert "\n" not in message
    return message


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\n",
        b"this is a text, not a model\n" * 10,
        b"PK\x03\x04" + bytes(100),
        b"\x89PNG\r\n\x1a\n" + bytes(range(256)),
        b"\x08\x0a",
        bytes(10_000),
    ],
    ids=["empty", "newline", "text", "zip", "png", "version only", "zeros"],
)
def test_a_file_that_is_no_model_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(content)
    refused(path)


def test_a_name_that_is_no_text_is_refused_in_one_line(
    text: Text, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    proto = text("g (float[2] x) => (float[2] y) { h = Relu <alpha = 1.0> (x) y = Neg(h) }")
    (tmp_path / "m.onnx").write_bytes(proto.SerializeToString().replace(b"alpha", b"alph\xe9"))
    assert "decode byte 0xe9" in refused(tmp_path / "m.onnx")
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("ending", ["json", "textproto", "onnxtxt"])
def test_a_text_format_with_other_content_is_refused(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"m.{ending}"
    path.write_text("neither { this nor that")
    refused(path)


def test_a_missing_file_and_a_folder_are_refused(tmp_path: Path) -> None:
    assert "no such file" in refused(tmp_path / "none.onnx")
    assert "directory" in refused(tmp_path).lower()
    with pytest.raises(ModelError):
        digest(tmp_path / "none.onnx")


def test_a_model_cut_off_anywhere_is_refused_or_still_valid(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    accepted = []
    for length in range(len(SEED)):
        path.write_bytes(SEED[:length])
        try:
            load(path)
        except ModelError:
            continue
        accepted.append(length)
    # Only where the function is missing as a whole can nobody see that there was one.
    assert len(accepted) <= 1


@draws(150, 600)
@given(st.integers(0, 2**32))
def test_mutated_bytes_give_a_model_that_can_be_used_or_an_error_of_ours(tmp_path: Path, seed: int) -> None:
    generator = random.Random(seed)
    data = bytearray(SEED)
    for _ in range(generator.randint(1, 4)):
        place = generator.randrange(len(data))
        data[place : place + generator.randint(0, 3)] = generator.randbytes(generator.randint(0, 3))
    path = tmp_path / "m.onnx"
    path.write_bytes(data)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter(
                "ignore", ModelWarning
            )  # a mutated name of an attribute is one that onnxruntime takes
            model = load(path)
        constants = Constants(model)
        resolve(model)
        for node in model.graph.all_nodes():
            for output in node.outputs:
                _ = constants.array(output) if output in constants else None
        to_bytes(model)
    except OnnxtileError:
        pass


@pytest.mark.parametrize(
    ("graph", "reason"),
    [
        ("g (float[1] x) => (float[1] y) { y = Nonsense(x) }", "Nonsense"),
        ("g (float[1] x) => (float[1] y) { y = Relu(h) h = Abs(x) }", "sorted"),
        ("g (float[1] x) => (float[1] y) { h = Add(x, y) y = Relu(h) }", "sorted"),
        ("g (float[1] x) => (float[1] y) { y = Relu(x) y = Abs(x) }", "SSA"),
        ("g (float[1] x) => (float[1] y) { x = Relu(x) y = Abs(x) }", "SSA"),
        ("g (float[1] x) => (float[1] y) { y = Relu(nowhere) }", "nowhere"),
        ("g (float[1] x) => (float[1] y) { h = Relu(x) }", "y"),
        ("g (float[1] x) => (float[1] y) { y = Relu(x, x) }", "Relu"),
        ("g (float[1] x) => (float[1] y) { y = Relu <alpha = 1.0> (x) }", "alpha"),
    ],
    ids=["operator", "order", "cycle", "twice", "over an input", "undefined", "no output", "inputs", "attribute"],
)
def test_a_graph_that_breaks_the_specification_is_refused(text: Text, graph: str, reason: str) -> None:
    with pytest.raises(ModelError, match=reason):
        load(text(graph))


LOOP = "g (int64 n, bool c, float[2] x, seq(float[2]) q) => (float[2] y, seq(float[2]) r) { %s }"
EMPTY_LOOP = "y = Loop(%s, c, x) <body = b (int64 i, bool go, float[2] old) => (bool go, float[2] old) { }>"
MAPPED = "r = SequenceMap(q) <body = m (float[2] x) => (float[2] y) { %s }> y = Relu(x)"


@pytest.mark.parametrize(
    ("graph", "is_taken"),
    [
        (LOOP % (EMPTY_LOOP % "n" + " r = Identity(q)"), False),
        (LOOP % ("t = Constant <value_int = 1000001> () " + EMPTY_LOOP % "t" + " r = Identity(q)"), False),
        (LOOP % ("t = Constant <value_int = 1000000> () " + EMPTY_LOOP % "t" + " r = Identity(q)"), True),
        (LOOP % (MAPPED % (EMPTY_LOOP % "n")), False),
        (LOOP % ("t = Constant <value_int = 3> () " + MAPPED % (EMPTY_LOOP % "t")), True),
    ],
    ids=[
        "turns by an input",
        "turns above the limit",
        "turns within it",
        "in a body of SequenceMap",
        "with few turns there",
    ],
)
def test_an_empty_loop_that_no_signal_stops_is_refused(text: Text, graph: str, is_taken: bool) -> None:
    if is_taken:
        load(text(graph))
    else:
        with pytest.raises(ModelError, match="Loop has an empty body"):
            load(text(graph))


def test_an_unsorted_model_of_the_caller_is_refused(small: onnx.ModelProto) -> None:
    model = ir.from_proto(small)
    model.graph.insert_before(model.graph.node(0), model.graph.node(1))
    with pytest.raises(ModelError, match="sorted") as error:
        load(model)
    assert "TopologicalSortPass" in str(error.value.hint)


def test_an_unknown_domain_is_for_the_runtime_to_know(text: Text) -> None:
    model = load(text("g (float[1] x) => (float[1] y) { y = foo.Bar <a = 1> (x) }"))
    assert model.graph.node(0).op_type == "Bar"


def test_a_domain_without_a_version_is_refused() -> None:
    proto = onnx.parser.parse_model(
        '<ir_version: 10, opset_import: ["": 17]> g (float[1] x) => (float[1] y) { y = foo.Bar(x) }'
    )
    with pytest.raises(ModelError, match="foo"):
        load(proto)


def test_tensors_with_too_few_bytes_and_ones_without_name_are_refused(small: onnx.ModelProto) -> None:
    short = onnx.ModelProto.FromString(small.SerializeToString())
    short.graph.initializer[0].CopyFrom(numpy_helper.from_array(np.ones(3, np.float32), "w"))
    short.graph.initializer[0].raw_data = bytes(11)
    with pytest.raises(ModelError):
        load(short)
    large = onnx.ModelProto.FromString(small.SerializeToString())
    large.graph.initializer[0].CopyFrom(numpy_helper.from_array(np.ones((1000, 3), np.float32), "w"))
    large.graph.initializer[0].raw_data = bytes(11_999)
    with pytest.raises(ModelError, match="truncated"):
        load(large)
    unnamed = onnx.ModelProto.FromString(small.SerializeToString())
    unnamed.graph.initializer[0].name = ""
    with pytest.raises(ModelError, match="no name"):
        load(unnamed)


@pytest.mark.parametrize(
    ("size", "reason"), [(2**20, "begins with a byte of zero"), (5 * 2**30, "reads less than 2 GiB")]
)
def test_a_file_that_is_no_protobuf_is_refused_before_it_is_read(tmp_path: Path, size: int, reason: str) -> None:
    with (tmp_path / "m.onnx").open("wb") as file:
        file.truncate(size)
    began = time.monotonic()
    assert reason in refused(tmp_path / "m.onnx")
    assert time.monotonic() - began < 5


def test_names_that_are_not_text_are_refused(tmp_path: Path, text: Text) -> None:
    path = tmp_path / "m.onnx"
    proto = text("g (float[1] x) => (float[1] y) { y = foo.QQQQ(x) }")
    path.write_bytes(proto.SerializeToString().replace(b"QQQQ", b"Q\xff\xfeQ"))
    refused(path)


def test_external_data_is_mapped_when_read(external: Path) -> None:
    model = load(external)
    assert [tensor.location for tensor in external_tensors(model)] == ["w.bin"]
    weights = model.graph.initializers["w"].const_value
    assert weights is not None
    np.testing.assert_array_equal(weights.numpy(), np.arange(1000))


def test_external_data_that_has_a_second_link_is_read(external: Path, tmp_path: Path) -> None:
    os.link(external.parent / "w.bin", tmp_path / "again.bin")
    weights = load(external).graph.initializers["w"].const_value
    assert weights is not None
    np.testing.assert_array_equal(weights.numpy(), np.arange(1000))


def test_external_data_that_is_missing_or_truncated_is_refused(external: Path) -> None:
    data = external.parent / "w.bin"
    with data.open("r+b") as file:
        file.truncate(3999)
    assert "truncated" in refused(external)
    data.unlink()
    assert "missing" in refused(external)
    data.mkdir()
    assert "missing" in refused(external)


@pytest.mark.parametrize("location", ["../w.bin", "/etc/hostname", "a/../../w.bin"])
def test_external_data_outside_the_folder_is_refused(external: Path, location: str) -> None:
    (external.parent.parent / "w.bin").write_bytes((external.parent / "w.bin").read_bytes())
    proto = onnx.load(external, load_external_data=False)
    for tensor in proto.graph.initializer:
        entry = next(e for e in tensor.external_data if e.key == "location")
        entry.value = location
    external.write_bytes(proto.SerializeToString())
    assert "outside" in refused(external)


@pytest.mark.parametrize(("key", "value"), [("offset", "-8"), ("length", "-1"), ("length", "12"), ("offset", "many")])
def test_external_data_with_odd_numbers_is_refused(external: Path, key: str, value: str) -> None:
    proto = onnx.load(external, load_external_data=False)
    entries = proto.graph.initializer[0].external_data
    kept = [(e.key, e.value) for e in entries if e.key != key]
    del entries[:]
    for name, content in (*kept, (key, value)):
        entries.add(key=name, value=content)
    external.write_bytes(proto.SerializeToString())
    refused(external)


def test_external_data_of_a_model_in_memory_must_be_there_too(
    external: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    proto = onnx.load(external, load_external_data=False)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ModelError, match="missing"):
        load(proto)
    monkeypatch.chdir(external.parent)
    assert len(external_tensors(load(proto))) == 2


def test_external_data_of_a_constant_node_is_seen(external: Path) -> None:
    proto = onnx.load(external, load_external_data=False)
    weights = proto.graph.initializer[0]
    node = helper.make_node("Constant", [], ["w"], value=weights)
    del proto.graph.initializer[0]
    proto.graph.node.insert(0, node)
    external.write_bytes(proto.SerializeToString())
    assert len(external_tensors(load(external))) == 1
    (external.parent / "w.bin").unlink()
    assert "missing" in refused(external)


def test_the_callers_proto_stays_as_it_is(small: onnx.ModelProto) -> None:
    before = small.SerializeToString(deterministic=True)
    edit(load(small))
    assert small.SerializeToString(deterministic=True) == before


def test_the_callers_model_stays_as_it_is(small: onnx.ModelProto) -> None:
    theirs = ir.from_proto(small)
    before = ir.to_proto(theirs).SerializeToString(deterministic=True)
    edit(load(theirs))
    tensor = theirs.graph.initializers["w"].const_value
    assert tensor is not None
    assert tensor.name == "w"
    assert ir.to_proto(theirs).SerializeToString(deterministic=True) == before


def edit(model: ir.Model) -> None:
    model.graph.initializers["w"].name = "renamed"
    for value in (*model.graph.inputs, *(v for node in model.graph for v in node.outputs)):
        value.dtype = ir.DataType.INT8
        value.shape = ir.Shape([7])
    model.graph.remove(model.graph.node(-1), safe=False)
    model.graph.opset_imports["onnxtile"] = 1


def test_weights_in_memory_are_shared_not_copied() -> None:
    weights = np.ones((1000, 1000), np.float32)
    value = ir.Value(name="w", const_value=ir.Tensor(weights, name="w"))
    x = ir.Value(name="x", shape=ir.Shape([1000, 1000]), type=ir.TensorType(ir.DataType.FLOAT))
    node = ir.Node("", "Add", [x, value], outputs=[ir.Value(name="y", shape=x.shape, type=x.type)])
    graph = ir.Graph([x], node.outputs, nodes=[node], initializers=[value], opset_imports={"": 17}, name="g")
    loaded = load(ir.Model(graph, ir_version=10)).graph.initializers["w"].const_value
    assert loaded is not None
    assert np.shares_memory(loaded.numpy(), weights)


@pytest.mark.parametrize(
    "kind", ["FLOAT16", "BFLOAT16", "FLOAT8E4M3FN", "INT4", "UINT4", "BOOL", "STRING", "COMPLEX64"]
)
def test_every_element_type_survives(kind: str) -> None:
    number = getattr(TensorProto, kind)
    content: Any = [b"a", b"b", b"c"] if kind == "STRING" else [1, 0, 1]
    tensor = helper.make_tensor("w", number, [3], content)
    proto = build.model(
        [helper.make_node("foo.Id", ["w"], ["y"], domain="foo")], {}, {"y": (number, [3])}, [tensor], opset=21, foo=1
    )
    again = onnx.load_from_string(to_bytes(load(proto))).graph.initializer[0]
    assert again.data_type == number
    np.testing.assert_array_equal(numpy_helper.to_array(again), numpy_helper.to_array(tensor))


def test_a_path_may_be_a_string_and_has_a_digest(tmp_path: Path, small: onnx.ModelProto) -> None:
    path = tmp_path / "ä m.onnx"
    onnx.save(small, path)
    assert len(load(str(path)).graph) == 2
    assert len(digest(str(path)) or "") == 64
    assert digest(small) is None


def test_the_collector_runs_again_afterwards(small: onnx.ModelProto, tmp_path: Path) -> None:
    load(small)
    with pytest.raises(ModelError):
        load(tmp_path / "none.onnx")
    assert gc.isenabled()


def test_large_constants_are_not_in_what_the_checker_sees() -> None:
    big = numpy_helper.from_array(np.zeros(100_000, np.float32), "c")
    nodes = [helper.make_node("Constant", [], ["c"], value=big), helper.make_node("Add", ["c", "w"], ["y"])]
    from onnxtile.model.validity import _light, skeleton

    proto = build.model(nodes, {}, {"y": [100_000]}, {"w": np.zeros(100_000, np.float32)})
    assert _light(proto).ByteSize() < 300
    model = load(proto)
    assert skeleton(model).ByteSize() < 300
    assert len(model.graph) == 2


def test_a_graph_of_many_nodes_loads_and_resolves_in_proportion() -> None:
    nodes = [helper.make_node("Relu", [f"v{i}"], [f"v{i + 1}"], name=f"n{i}") for i in range(20_000)]
    proto = build.model(nodes, {"v0": [2, 8]}, {"v20000": [2, 8]})
    model = load(proto)
    assert resolve(model).sizes(model.graph.outputs[0]) == (2, 8)


def test_a_dimension_of_minus_one_is_free(text: Text) -> None:
    proto = text("g (float[2, 3] x) => (float[2, 3] y) { y = Relu(x) }")
    for info in (proto.graph.input[0], proto.graph.output[0]):
        info.type.tensor_type.shape.dim[0].dim_value = -1
    model = load(proto)
    for value in (*model.graph.inputs, *model.graph.outputs):
        assert value.shape is not None
        assert [isinstance(dim, int) for dim in value.shape] == [False, True]


@pytest.mark.parametrize("place", ["input", "output", "value_info"])
def test_maps_of_zip_maps_are_refused_with_the_way_to_leave_them_out(place: str) -> None:
    scores = helper.make_tensor_value_info("scores", TensorProto.FLOAT, [1, 2])
    kind = helper.make_map_type_proto(TensorProto.INT64, helper.make_tensor_type_proto(TensorProto.FLOAT, []))
    maps = helper.make_value_info("maps", helper.make_sequence_type_proto(kind))
    node = helper.make_node("ZipMap", ["scores"], ["maps"], domain="ai.onnx.ml", classlabels_int64s=[0, 1])
    graph = helper.make_graph([node], "g", [scores], [scores])
    getattr(graph, place).append(maps)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 3)])
    with pytest.raises(ModelError, match=r"the value 'maps' holds maps") as error:
        load(model)
    assert error.value.hint is not None
    assert "zipmap" in error.value.hint


@pytest.mark.parametrize("field", ["producer", "doc", "node doc", "value doc", "key", "value", "denotation", "name"])
def test_a_text_that_is_not_utf8_is_refused(tmp_path: Path, field: str) -> None:
    model = onnx.ModelProto.FromString(SEED)
    owner, attribute = {
        "producer": (model, "producer_name"),
        "doc": (model.graph, "doc_string"),
        "node doc": (model.graph.node[1], "doc_string"),
        "value doc": (model.graph.input[0], "doc_string"),
        "key": (model.metadata_props.add(), "key"),
        "value": (model.graph.node[1].metadata_props.add(), "value"),
        "denotation": (model.graph.input[0].type, "denotation"),
        "name": (model.graph.node[1], "name"),
    }[field]
    setattr(owner, attribute, "thetext")
    path = tmp_path / "m.onnx"
    path.write_bytes(model.SerializeToString().replace(b"thetext", b"the\xff\xfe\xfd\xfc"))
    assert "not UTF-8" in refused(path)


def test_a_number_without_end_in_a_text_is_refused(tmp_path: Path) -> None:
    (tmp_path / "m.onnxtxt").write_text(f"<ir_version: {'9' * 30}> g (float x) => (float y) {{ y = Neg(x) }}")
    with pytest.raises(ModelError, match="not an ONNX model"):
        load(tmp_path / "m.onnxtxt")


@pytest.mark.parametrize(("size", "fits"), [(2, True), (1, False), (3, False), (2**40, False)])
def test_texts_are_as_many_as_their_shape_asks_for(size: int, fits: bool) -> None:
    model = onnx.parser.parse_model(
        '<ir_version: 10, opset_import: ["": 17]> g () => (string[N] y) { y = Identity(t) }'
    )
    model.graph.initializer.append(
        onnx.TensorProto(name="t", data_type=onnx.TensorProto.STRING, dims=[size], string_data=[b"a", b"b"])
    )
    if fits:
        load(model)
        return
    with pytest.raises(ModelError, match=r"'t' of shape .* is truncated|tensor name: t"):
        load(model)


@pytest.mark.parametrize("version", [3, 7, 8])
def test_functions_are_checked_in_every_version_of_the_format(version: int) -> None:
    """The checker of onnx looks at them from version 8 on."""
    model = onnx.parser.parse_model(f"""<ir_version: {version}, opset_import: ["" : 17, "f" : 1]>
      g (float[2] x) => (float[2] y) {{ y = f.act(x) }}
      <domain: "f", opset_import: ["" : 17]> act (x) => (y) {{ y = Neg(nowhere) }}""")
    with pytest.raises(ModelError, match="'nowhere'"):
        load(model)


# Sparse constants are written densely, wherever they are, and what cannot be is refused in a line.


FEEDS = {"x": np.ones((2, 3), np.float32), "go": np.array(True)}


def sparse(name: str, *places: int | list[int], dims: tuple[int, ...] = (2, 3)) -> onnx.SparseTensorProto:
    values = numpy_helper.from_array(np.arange(5, 5 + len(places), dtype=np.float32), name)
    return helper.make_sparse_tensor(values, numpy_helper.from_array(np.asarray(places, np.int64), "places"), dims)


def model(constant: onnx.SparseTensorProto | None = None) -> onnx.ModelProto:
    """Sums with a sparse initializer, with sparse constants of a node and of a function, and with sparse initializers of bodies."""
    kind = helper.make_tensor_type_proto(TensorProto.FLOAT, [2, 3])
    y, x, go = (helper.make_value_info(name, kind) for name in ("y", "x", "go"))
    go.type.tensor_type.CopyFrom(onnx.TypeProto.Tensor(elem_type=TensorProto.BOOL, shape=onnx.TensorShapeProto()))
    branches: dict[str, Any] = {
        f"{name}_branch": helper.make_graph(
            [helper.make_node("Add", ["x", "s"], [name])],
            name,
            [],
            [helper.make_value_info(name, kind)],
            sparse_initializer=[sparse("s", place)],
        )
        for place, name in enumerate(("then", "else"))
    }
    nodes = [
        helper.make_node("Constant", [], ["c"], sparse_value=constant or sparse("c", [0, 2], [1, 1])),
        helper.make_node("Add", ["x", "c"], ["t"]),
        helper.make_node("Add", ["t", "w"], ["u"]),
        helper.make_node("If", ["go"], ["r"], **branches),
        helper.make_node("Shift", ["u"], ["v"], domain="own"),
        helper.make_node("Mul", ["v", "r"], ["y"]),
    ]
    inner = [
        helper.make_node("Constant", [], ["k"], sparse_value=sparse("k", 5)),
        helper.make_node("Add", ["a", "k"], ["b"]),
    ]
    shift = helper.make_function("own", "Shift", ["a"], ["b"], inner, [helper.make_opsetid("", 17)])
    graph = helper.make_graph(nodes, "g", [x, go], [y], sparse_initializer=[sparse("w", 2, 5)])
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("own", 1)]
    return helper.make_model(graph, opset_imports=imports, ir_version=8, functions=[shift])


def test_a_model_with_sparse_constants_computes_what_they_say(tmp_path: Path) -> None:
    """Only the dense model is run: onnxruntime 1.32 crashes now and then when it loads the other."""
    before = model()
    onnx.save(before, tmp_path / "m.onnx")
    with pytest.warns(ModelWarning, match="5 sparse constants are written densely"):
        onnxtile.save(load(tmp_path / "m.onnx"), tmp_path / "dense.onnx")
    after = onnx.load(tmp_path / "dense.onnx")
    assert Session(after.SerializeToString()).run(FEEDS)["y"].tolist() == [[6, 1, 11], [1, 7, 12]]
    assert densely(after) is after
    with pytest.warns(ModelWarning):
        densely(before)
    assert before == model(), "the given model was changed"


def test_a_model_without_sparse_constants_is_not_copied() -> None:
    dense = densely(onnx.parser.parse_model('<ir_version: 8, opset_import: ["": 17]> g () => () { }'))
    assert densely(dense) is dense


def external(tensor: onnx.SparseTensorProto) -> None:
    tensor.values.data_location = TensorProto.EXTERNAL


def text(tensor: onnx.SparseTensorProto) -> None:
    tensor.values.CopyFrom(numpy_helper.from_array(np.array(["a"], object), "c"))


def far(tensor: onnx.SparseTensorProto) -> None:
    tensor.indices.CopyFrom(numpy_helper.from_array(np.array([6]), "places"))


def large(tensor: onnx.SparseTensorProto) -> None:
    tensor.dims[:] = [MOST_BYTES // 4 + 1]


def endless(tensor: onnx.SparseTensorProto) -> None:
    tensor.dims[:] = [2**40, 2**40]


def typeless(tensor: onnx.SparseTensorProto) -> None:
    tensor.values.data_type = 99


@pytest.mark.parametrize("spoil", [external, text, far, large, endless, typeless])
def test_what_cannot_be_written_densely_is_refused(spoil: Callable[[onnx.SparseTensorProto], None]) -> None:
    constant = sparse("c", 0)
    spoil(constant)
    with pytest.raises(ModelError, match=r"sparse|valid"):
        load(model(constant))


@pytest.mark.parametrize(("ir_version", "kept"), [(3, ["a", "y"]), (8, ["y"])])
def test_the_skeleton_for_inference_has_constants_as_initializers(ir_version: int, kept: list[str]) -> None:
    from onnxtile.model.validity import skeleton

    value = numpy_helper.from_array(np.asarray([2, 3], np.int64))
    nodes = [helper.make_node("Constant", [], [name], value=value) for name in ("a", "y")]
    nodes.append(helper.make_node("Reshape", ["x", "a"], ["z"]))
    ends = [helper.make_tensor_value_info("y", TensorProto.INT64, [2]), helper.make_tensor_value_info("z", 1, None)]
    graph = helper.make_graph(nodes, "g", [helper.make_tensor_value_info("x", 1, [6])], ends)
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=ir_version)
    written = skeleton(ir.from_proto(proto), described=False, folded=True).graph
    assert [node.output[0] for node in written.node if node.op_type == "Constant"] == kept
    assert [tensor.name for tensor in written.initializer] == ["a"][: 2 - len(kept)]
