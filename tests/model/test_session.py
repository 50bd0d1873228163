"""Sessions of models in memory: large ones go through a file, which leaves nothing behind."""

import subprocess
import sys
import time
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
from onnx import TensorProto, external_data_helper, helper, numpy_helper, parser

from onnxtile.arena.memory import TensorMemory
from onnxtile.model import exact_products, session
from onnxtile.model.feeds import sample_feeds
from onnxtile.model.load import load
from onnxtile.model.save import save
from onnxtile.model.session import SplitSession, may_split, session_of
from onnxtile.system.errors import ModelError
from onnxtile.system.runtime import Array, Session
from tests import build
from tests.bench.large_graphs import MAKERS


def product(size: int, op: str = "MatMul", layers: int = 1) -> ir.Model:
    weights = np.arange(size * size, dtype=np.float32).reshape(size, size)
    x = made = ir.Value(name="x", type=ir.TensorType(ir.DataType.FLOAT), shape=ir.Shape([1, size]))
    nodes, held = [], []
    for layer in range(layers):
        name = f"w{layer}"
        shape, type_ = ir.Shape([size, size]), ir.TensorType(ir.DataType.FLOAT)
        held.append(ir.Value(name=name, const_value=ir.tensor(weights + layer, name=name), shape=shape, type=type_))
        nodes.append(ir.Node("", op, [made, held[-1]]))
        made = nodes[-1].outputs[0]
        made.name, made.type, made.shape = f"y{layer}", x.type, x.shape
    graph = ir.Graph([x], [made], nodes=nodes, initializers=held, opset_imports={"": 17}, name="g")
    return ir.Model(graph, ir_version=10)


def test_a_large_model_gives_what_a_small_one_gives(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    feeds = {"x": np.ones((1, 32), np.float32)}
    small = session_of(product(32)).run(feeds)["y0"]
    monkeypatch.setattr(session, "MOST_IN_MEMORY", 8)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert session_of(product(32)).run(feeds)["y0"].tolist() == small.tolist()
    assert list(tmp_path.iterdir()) == []


TYPES = [
    "FLOAT",
    "DOUBLE",
    "FLOAT16",
    "BFLOAT16",
    "FLOAT8E4M3FN",
    "FLOAT8E5M2",
    "INT8",
    "UINT8",
    "INT16",
    "UINT16",
    "INT32",
    "UINT32",
    "INT64",
    "UINT64",
    "BOOL",
    "INT4",
    "UINT4",
]


@pytest.mark.parametrize("name", TYPES)
def test_weights_of_each_type_are_read_where_they_are(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    dtype = ir.DataType[name]
    held = ir.Tensor((np.arange(23 * 89) % 7).reshape(23, 89).astype(dtype.numpy()), dtype)
    weight = ir.Value(name="w", const_value=held, shape=ir.Shape([23, 89]), type=ir.TensorType(dtype))
    node = ir.Node("", "Cast", [weight], [ir.AttrInt64("to", ir.DataType.FLOAT)])
    node.outputs[0].name, node.outputs[0].type = "y", ir.TensorType(ir.DataType.FLOAT)
    graph = ir.Graph([], node.outputs, nodes=[node], initializers=[weight], opset_imports={"": 23}, name="g")
    model = ir.Model(graph, ir_version=11)
    expected = session_of(model).run({})["y"]
    monkeypatch.setattr(session, "MOST_IN_MEMORY", 8)
    assert session_of(model).run({})["y"].tobytes() == expected.tobytes()
    assert expected.std() > 0


def test_large_weights_beside_external_ones(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    ir.save(product(32, layers=2), tmp_path / "m.onnx", external_data="m.data", size_threshold_bytes=0)
    model = load(tmp_path / "m.onnx")
    feeds = {"x": np.ones((1, 32), np.float32)}
    expected = session_of(model).run(feeds)["y1"]
    value = model.graph.initializers["w1"]
    assert value.const_value is not None
    value.const_value = ir.tensor(value.const_value.numpy().copy(), name="w1")
    monkeypatch.setattr(session, "MOST_IN_MEMORY", 8)
    assert session_of(model).run(feeds)["y1"].tobytes() == expected.tobytes()


def test_long_lists_of_sizes_stay_in_a_large_model(monkeypatch: pytest.MonkeyPatch) -> None:
    text = ",".join(f"y{piece}" for piece in range(300))
    model = ir.from_proto(
        parser.parse_model(
            f'<ir_version: 10, opset_import: ["": 17]> g (float[600] x) => (float[2] y0, float[2] y299)'
            f"<int64[300] sizes = {{{','.join('2' * 300)}}}> {{ {text} = Split<axis=0>(x, sizes) }}"
        )
    )
    monkeypatch.setattr(session, "MOST_IN_MEMORY", 8)
    assert session_of(model).run({"x": np.arange(600, dtype=np.float32)})["y299"].tolist() == [598, 599]


def test_weights_of_a_file_that_lie_at_no_element(tmp_path: Path) -> None:
    places = set()
    for shift in range(4):
        model = product(3_000)
        model.graph.doc_string = "-" * shift
        save(model, tmp_path / "m.onnx")
        loaded = load(tmp_path / "m.onnx")
        tensor = loaded.graph.initializers["w0"].const_value
        assert tensor is not None
        places.add(tensor.numpy().flags.aligned)
        feeds = {"x": np.ones((1, 3_000), np.float32)}
        expected = Session(tmp_path / "m.onnx").run(feeds)["y0"]
        assert session_of(loaded).run(feeds)["y0"].tobytes() == expected.tobytes()
    assert places == {False, True}


@pytest.mark.parametrize("most", [8, 1000])
def test_sums_of_weights_are_rounded_as_where_onnxruntime_reads_them(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, most: int
) -> None:
    """Weights in a file lie anywhere, and a training BatchNormalization adds them up in another order there."""
    weights = np.random.default_rng(0).standard_normal((1, 7, 1001)).astype(np.float32)
    model, feeds = parser.parse_model(_NORM), {"x": np.ones(1, np.float32)}
    model.graph.initializer.append(numpy_helper.from_array(weights, "w"))
    expected = Session(model.SerializeToString()).run(feeds)["y"]
    monkeypatch.setattr(session, "MOST_IN_MEMORY", most)
    for offset in range(0, 32, 4):
        (tmp_path / "w").write_bytes(bytes(offset) + weights.tobytes())
        model.graph.initializer[-1].raw_data = weights.tobytes()
        external_data_helper.set_external_data(model.graph.initializer[-1], "w", offset, weights.nbytes)
        model.graph.initializer[-1].ClearField("raw_data")
        (tmp_path / "m.onnx").write_bytes(model.SerializeToString())
        assert session_of(load(tmp_path / "m.onnx")).run(feeds)["y"].tobytes() == expected.tobytes()


_NORM = """<ir_version: 8, opset_import: ["" : 15]>
g (float[1] x) => (float[1,7,1001] y) <float[7] one = {1, 1, 1, 1, 1, 1, 1}, float[7] zero = {0, 0, 0, 0, 0, 0, 0}> {
    n, mean, variance = BatchNormalization<training_mode = 1>(w, one, zero, zero, one)
    y = Mul(n, x)
}"""


def test_a_refusal_leaves_no_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(session, "MOST_IN_MEMORY", 8)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with pytest.raises(ModelError, match="cannot load"):
        session_of(product(4, op="NoSuchOperator"))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(sys.platform != "linux", reason="the peak of memory is measured as Linux tells it")
def test_weights_are_held_once_while_a_large_model_loads(tmp_path: Path) -> None:
    path = tmp_path / "large.onnx"
    save(product(1024, layers=9), path)
    held = 9 * 1024 * 1024 * 4
    code = f"""
import resource, numpy as np
from pathlib import Path
from onnxtile.model.load import load
from onnxtile.model.session import session_of
session_of(load({str(tmp_path / "small.onnx")!r}))
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
session_of(load({str(path)!r}))
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024)
"""
    save(product(4), tmp_path / "small.onnx")
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert int(run.stdout) < 1.4 * held


def test_the_model_stays_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "MOST_IN_MEMORY", 8)
    model = product(32)
    tensor = model.graph.initializers["w0"].const_value
    session_of(model)
    assert model.graph.initializers["w0"].const_value is tensor


def test_a_file_with_external_weights_is_read_where_it_lies(tmp_path: Path) -> None:
    ir.save(product(4), tmp_path / "m.onnx", external_data="m.data", size_threshold_bytes=0)
    found = session_of(load(tmp_path / "m.onnx")).run({"x": np.ones((1, 4), np.float32)})
    assert found["y0"].shape == (1, 4)


# A model of many nodes that runs in pieces gives what it gives when it is loaded whole, in time linear in its width.


@pytest.fixture
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "MOST_WHOLE", 10)
    monkeypatch.setattr(session, "_PIECE", 7)


def known(value: ir.Value) -> tuple[int, ...] | None:
    return None if value.shape is None else value.shape.numpy()


def whole(model: ir.Model, feeds: dict[str, Array]) -> dict[str, Array]:
    return Session(ir.to_proto(model).SerializeToString()).run(feeds)


@pytest.mark.parametrize("shape", MAKERS)
@pytest.mark.usefixtures("small_pieces")
def test_pieces_give_the_bits_of_the_whole(shape: str) -> None:
    model = ir.from_proto(MAKERS[shape](120))
    pieces = session_of(model)
    assert isinstance(pieces, SplitSession)
    assert len(pieces._pieces) > len(model.graph) // 8
    feeds = sample_feeds(model, known, seed=1)
    expected = whole(model, feeds)
    found = pieces.run(feeds)
    assert list(found) == list(expected)
    assert all(found[name].tobytes() == expected[name].tobytes() for name in expected)
    again = pieces.run({name: -array for name, array in feeds.items()})
    assert all(again[name].tobytes() != expected[name].tobytes() for name in expected)


@pytest.mark.usefixtures("small_pieces")
def test_pieces_that_are_not_held_are_loaded_once_for_several_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    model = ir.from_proto(MAKERS["transformer"](120))
    runs = [sample_feeds(model, known, seed=seed) for seed in (1, 2)]
    held = [SplitSession(model).run(feeds) for feeds in runs]
    monkeypatch.setattr(session, "_MOST_HELD", 0)
    loads, load = list[int](), exact_products.exact_session

    def noted(*arguments: Any, **named: Any) -> Session:
        loads.append(1)
        return load(*arguments, **named)

    monkeypatch.setattr(session, "exact_session", noted)
    pieces = SplitSession(model)
    found = list(session.run_each(pieces, runs))
    assert len(loads) == 2 * len(pieces._pieces)
    assert [[array.tobytes() for array in run.values()] for run in found] == [
        [array.tobytes() for array in run.values()] for run in held
    ]


@pytest.mark.usefixtures("small_pieces")
def test_pieces_run_in_place() -> None:
    model = ir.from_proto(MAKERS["streams"](60))
    # The value that the Sum reads is an output, too: later pieces read it where it was written.
    model.graph.outputs.append(model.graph.node(20).outputs[0])
    model.graph.outputs[-1].type = ir.TensorType(ir.DataType.FLOAT)
    feeds = sample_feeds(model, known, seed=1)
    expected = whole(model, feeds)
    dtype = ir.DataType.FLOAT
    given = {name: TensorMemory.from_array(array, dtype) for name, array in feeds.items()}
    made = {name: TensorMemory.empty(dtype, array.shape, array.nbytes) for name, array in expected.items()}
    pieces = SplitSession(model)
    pieces.run_in_place({name: one.binding for name, one in given.items()}, {n: one.binding for n, one in made.items()})
    for name, array in expected.items():
        assert bytes(made[name].data) == array.tobytes()


def typed_chain(first: int, *steps: tuple[str, int], opset: int = 17) -> ir.Model:
    """Return a model of Casts to types, with Identities between them."""
    nodes, value = [], "x"
    for at, (op, to) in enumerate(steps):
        nodes.append(helper.make_node(op, [value], [f"v{at}"]))
        nodes[-1].attribute.extend([helper.make_attribute("to", to)] if op == "Cast" else [])
        value = f"v{at}"
    return ir.from_proto(
        build.model(nodes, {"x": (first, [2, 3])}, {value: (steps[-1][1], [2, 3])}, opset=opset, ir_version=9)
    )


@pytest.mark.parametrize(
    ("element_type", "splits"),
    [
        (TensorProto.DOUBLE, True),
        (TensorProto.INT8, True),
        (TensorProto.BOOL, True),
        (TensorProto.FLOAT8E4M3FN, True),
        (TensorProto.FLOAT16, False),
        (TensorProto.BFLOAT16, False),
        (TensorProto.STRING, False),
    ],
)
@pytest.mark.usefixtures("small_pieces")
def test_what_passes_between_pieces(element_type: int, splits: bool) -> None:
    model = typed_chain(TensorProto.FLOAT, ("Cast", element_type), *[("Identity", element_type)] * 20, opset=19)
    assert may_split(model)
    session = session_of(model)
    assert isinstance(session, SplitSession) == splits
    feeds = {"x": np.array([[1.5, -2, 0], [3, 0.25, 1]], np.float32)}
    expected, found = whole(model, feeds), session.run(feeds)
    assert [(array.dtype, array.tolist()) for array in found.values()] == [
        (array.dtype, array.tolist()) for array in expected.values()
    ]


@pytest.mark.usefixtures("small_pieces")
def test_models_that_stay_whole() -> None:
    def may(change: str) -> bool:
        proto = MAKERS["chain"](30)
        if change == "random":
            proto.graph.node[3].CopyFrom(helper.make_node("RandomNormalLike", ["v2"], ["v3"]))
        if change == "body":
            body = helper.make_graph([], "body", [], [])
            proto.graph.node[3].CopyFrom(helper.make_node("If", ["v2"], ["v3"], then_branch=body, else_branch=body))
        if change == "default":
            proto.graph.input.append(helper.make_tensor_value_info("w0", TensorProto.FLOAT, [8]))
        if change == "constant output":
            proto.graph.output.append(helper.make_tensor_value_info("w0", TensorProto.FLOAT, [8]))
        if change == "short":
            del proto.graph.node[5:]
        return may_split(ir.from_proto(proto))

    assert may("nothing")
    assert not any(may(change) for change in ("random", "body", "default", "constant output", "short"))


@pytest.mark.usefixtures("small_pieces")
def test_weights_that_every_piece_would_hold_keep_a_model_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    model = ir.from_proto(MAKERS["chain"](70))
    monkeypatch.setattr(session, "_MOST_COPIED", 10 * 32 - 1)
    assert not may_split(model)
    monkeypatch.setattr(session, "_MOST_COPIED", 10 * 32)
    assert may_split(model)


@pytest.mark.usefixtures("small_pieces")
def test_a_refusal_is_that_of_the_whole() -> None:
    proto = MAKERS["chain"](30)
    proto.graph.node[20].op_type = "NoSuchOperator"
    with pytest.raises(ModelError, match="NoSuchOperator"):
        session_of(ir.from_proto(proto))


@pytest.mark.usefixtures("small_pieces")
def test_inputs_that_the_model_does_not_take() -> None:
    pieces = session_of(ir.from_proto(MAKERS["chain"](30)))
    with pytest.raises(ModelError, match="it takes x and is given nothing"):
        pieces.run({})


@pytest.mark.usefixtures("small_pieces")
def test_functions_and_unread_results_come_along() -> None:
    proto = MAKERS["chain"](30)
    inside = [helper.make_node("Tanh", ["a"], ["b"])]
    twice = helper.make_function("own", "F", ["a"], ["b"], inside, [helper.make_opsetid("", 17)])
    proto.functions.append(twice)
    proto.opset_import.append(helper.make_opsetid("own", 1))
    proto.graph.node[9].CopyFrom(helper.make_node("F", ["v8"], ["v9"], domain="own"))
    proto.graph.node.extend(helper.make_node("Neg", [f"v{at}"], [f"unread{at}"]) for at in range(20))
    model = ir.from_proto(proto)
    feeds = sample_feeds(model, known, seed=1)
    (found,), (expected,) = (run.values() for run in (session_of(model).run(feeds), whole(model, feeds)))
    assert found.tobytes() == expected.tobytes()


@pytest.mark.usefixtures("small_pieces")
def test_values_between_pieces_hold_no_session(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "_MOST_HELD", 100)
    model = ir.from_proto(MAKERS["wide"](200))
    x = TensorMemory.from_array(sample_feeds(model, known, seed=1)["x"], ir.DataType.FLOAT)
    y = TensorMemory.empty(ir.DataType.FLOAT, x.shape, len(x.data))
    pieces = SplitSession(model)
    made = list[weakref.ref[Any]]()

    class Noted(Session):
        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **options)
            made.append(weakref.ref(self._session._sess))
            assert sum(one() is not None for one in made) <= 2

    monkeypatch.setattr(exact_products, "Session", Noted)
    pieces.run_in_place({"x": x.binding}, {model.graph.outputs[0].name or "": y.binding})
    pieces.run({"x": np.ones(x.shape, np.float32)})
    assert len(made) == 2 * len(pieces._pieces)


@pytest.mark.usefixtures("small_pieces")
def test_pieces_of_a_model_that_is_not_large_are_loaded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    model = ir.from_proto(MAKERS["wide"](200))
    pieces = SplitSession(model)
    monkeypatch.setattr(exact_products, "Session", None)
    feeds = sample_feeds(model, known, seed=1)
    first, second = pieces.run(feeds), pieces.run(feeds)
    assert all(first[name].tobytes() == second[name].tobytes() for name in first)


def test_results_own_their_bytes_where_a_node_reads_many_values() -> None:
    model = ir.from_proto(MAKERS["wide"](3_600))
    results = SplitSession(model).run(sample_feeds(model, known, seed=1))
    assert all(array.flags.owndata for array in results.values())


@pytest.mark.slow
def test_time_to_run_grows_with_the_width() -> None:
    def seconds(size: int) -> float:
        model = ir.from_proto(MAKERS["wide"](size))
        feeds = sample_feeds(model, known, seed=1)
        start = time.process_time()
        session_of(model).run(feeds)
        return time.process_time() - start

    assert seconds(100_000) < 6 * seconds(25_000)  # both so large that their pieces are loaded twice
