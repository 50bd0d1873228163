"""Saving: whole or not at all, the weights where they were, the same bytes every time."""

from __future__ import annotations

import hashlib
import os
import stat
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, numpy_helper

from onnxtile import api
from onnxtile.model import save as room
from onnxtile.model.load import external_tensors, load
from onnxtile.model.save import external_folder, raise_ir_version, save, to_bytes, write_model
from onnxtile.system import files as weights
from onnxtile.system.errors import ModelError, ModelWarning, UsageError
from onnxtile.system.files import require_writable, write_whole
from onnxtile.system.runtime import Session
from tests.build import Text

LIGHT = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"


def listing(folder: Path) -> list[str]:
    return sorted(str(p.relative_to(folder)) for p in folder.rglob("*"))


def run(path: Path) -> Any:
    x = np.ones(1000, np.float32)
    return Session(path).run({"x": x})["y"]


def test_a_model_comes_back_as_it_was(small: onnx.ModelProto, tmp_path: Path) -> None:
    model = load(small)
    path = tmp_path / "m.onnx"
    save(model, path)
    onnx.checker.check_model(path, full_check=True)
    assert [n.op_type for n in load(path).graph] == ["Relu", "Add"]
    assert listing(tmp_path) == ["m.onnx"]


@pytest.mark.parametrize("elements", [4, 1_000, 300_000], ids=["checked", "read", "mapped"])
def test_a_weight_that_the_file_says_is_inline_stays_so(tmp_path: Path, elements: int) -> None:
    """As onnx writes it of weights that were in another file once; fused and unfused, the weight is as it was."""
    weight = numpy_helper.from_array(np.arange(elements, dtype=np.float32), "w")
    weight.data_location = TensorProto.DEFAULT
    proto = onnx.parser.parse_model(f"""<ir_version: 10, opset_import: ["" : 17]>
        g (float[{elements}] x) => (float[{elements}] y) {{ h = Mul(x, w) y = Relu(h) }}""")
    proto.graph.initializer.append(weight)
    (tmp_path / "m.onnx").write_bytes(proto.SerializeToString())
    api.fuse(tmp_path / "m.onnx", "Mul->Relu", verify=False).save(tmp_path / "fused.onnx")
    api.unfuse(tmp_path / "fused.onnx").save(tmp_path / "again.onnx")
    assert list(onnx.load(tmp_path / "again.onnx").graph.initializer) == [weight]


def test_a_failure_leaves_the_old_file_and_nothing_else(
    small: onnx.ModelProto, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(b"old")

    def refuse(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", refuse)
    with pytest.raises(UsageError, match="No space left"):
        save(load(small), path)
    assert path.read_bytes() == b"old"
    assert listing(tmp_path) == ["m.onnx"]


def test_an_interruption_leaves_the_old_file_and_nothing_else(
    external: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    out.mkdir()

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(room, "write_whole_with", interrupt)
    with pytest.raises(KeyboardInterrupt):
        save(load(external), out / "m.onnx")
    assert listing(out) == []
    assert (external.parent / "w.bin").stat().st_nlink == 1


def test_the_input_is_overwritten_only_by_force(small: onnx.ModelProto, tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    onnx.save(small, path)
    model = load(path)
    before = path.read_bytes()
    (tmp_path / "link.onnx").symlink_to(path)
    for same in (path, tmp_path / "link.onnx", tmp_path / ".." / tmp_path.name / "m.onnx"):
        with pytest.raises(UsageError, match="overwritten") as caught:
            save(model, same, source=path)
        assert "--force" in (caught.value.hint or "")
    assert path.read_bytes() == before
    save(model, path, source=path, force=True)
    save(model, tmp_path / "other.onnx", source=path)
    save(model, tmp_path / "other.onnx", source=path)


def test_places_that_cannot_be_written_are_refused_first(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="does not exist"):
        require_writable(tmp_path / "none" / "m.onnx")
    with pytest.raises(UsageError, match="folder"):
        require_writable(tmp_path)


def test_no_permission_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> tuple[int, str]:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("tempfile.mkstemp", refuse)
    with pytest.raises(UsageError, match="Permission denied"):
        write_whole(tmp_path / "m.onnx", b"")


def test_permissions_are_those_of_any_new_file_or_of_the_old_one(tmp_path: Path) -> None:
    mask = os.umask(0o027)
    try:
        write_whole(tmp_path / "new", b"1")
    finally:
        os.umask(mask)
    assert stat.S_IMODE((tmp_path / "new").stat().st_mode) == 0o640
    (tmp_path / "new").chmod(0o604)
    write_whole(tmp_path / "new", b"2")
    assert stat.S_IMODE((tmp_path / "new").stat().st_mode) == 0o604


def test_a_device_is_written_to_and_not_replaced(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        write_whole(pipe, b"bytes")
        assert os.read(reader, 10) == b"bytes"
    finally:
        os.close(reader)
    assert pipe.is_fifo()


def test_a_long_name_is_no_obstacle(tmp_path: Path) -> None:
    write_whole(tmp_path / ("n" * 250), b"")


def test_weights_stay_where_they_are_in_the_same_folder(external: Path) -> None:
    weights = external.parent / "w.bin"
    before = weights.stat()
    save(load(external), external.parent / "o.onnx")
    assert listing(external.parent) == ["m.onnx", "o.onnx", "w.bin"]
    after = weights.stat()
    assert (after.st_ino, after.st_nlink, after.st_mtime_ns) == (before.st_ino, before.st_nlink, before.st_mtime_ns)
    assert (external.parent / "o.onnx").stat().st_size < 1000
    np.testing.assert_array_equal(run(external.parent / "o.onnx"), np.arange(1000) + 1)


def test_weights_are_carried_into_another_folder(external: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    model = load(external)
    before = ir.to_proto(model).SerializeToString(deterministic=True)
    save(model, out / "o.onnx")
    assert (out / "w.bin").read_bytes() == (external.parent / "w.bin").read_bytes()
    # A second link to the weights would make onnx refuse both models.
    assert (external.parent / "w.bin").stat().st_nlink == 1
    onnx.load(external)
    onnx.load(out / "o.onnx")
    np.testing.assert_array_equal(run(out / "o.onnx"), np.arange(1000) + 1)
    # Once more, from the copy, and over it: nothing is in the way.
    save(load(out / "o.onnx"), out / "o.onnx", source=out / "o.onnx", force=True)
    save(load(external), out / "o.onnx")
    weights_ = load(out / "o.onnx").graph.initializers["w"].const_value
    assert weights_ is not None
    np.testing.assert_array_equal(weights_.numpy(), np.arange(1000))
    assert ir.to_proto(model).SerializeToString(deterministic=True) == before
    assert external_folder(model) == external.parent


def test_weights_in_a_folder_below_come_along(external: Path, tmp_path: Path) -> None:
    (external.parent / "sub").mkdir()
    (external.parent / "w.bin").rename(external.parent / "sub" / "w.bin")
    proto = onnx.load(external, load_external_data=False)
    for tensor in proto.graph.initializer:
        next(e for e in tensor.external_data if e.key == "location").value = "sub/w.bin"
    onnx.save(proto, external)
    out = tmp_path / "out"
    out.mkdir()
    save(load(external), out / "o.onnx")
    assert listing(out) == ["o.onnx", "sub", "sub/w.bin"]
    np.testing.assert_array_equal(run(out / "o.onnx"), np.arange(1000) + 1)


def test_a_copy_keeps_holes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weights, "_CHUNK", 1000)
    source, folder = tmp_path / "w.bin", tmp_path / "out"
    folder.mkdir()
    with source.open("wb") as file:
        file.seek(2**26)
        file.write(os.urandom(5000))
        file.truncate(2**27)
    tensor = ir.ExternalTensor("w.bin", 0, 4, ir.DataType.FLOAT, shape=ir.Shape([1]), name="w", base_dir=tmp_path)
    assert weights.carry([tensor], folder) == [folder / "w.bin"]
    assert (folder / "w.bin").read_bytes() == source.read_bytes()
    assert (folder / "w.bin").stat().st_blocks * 512 <= source.stat().st_blocks * 512 + 2**16


def test_a_copy_that_fails_leaves_nothing(external: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "write", refuse)
    out = tmp_path / "out"
    out.mkdir()
    with pytest.raises(UsageError, match="No space left"):
        save(load(external), out / "o.onnx")
    assert listing(out) == []


def test_another_file_of_the_weights_name_is_left_alone(external: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "w.bin").write_bytes(b"mine")
    with pytest.raises(UsageError, match=r"w\.bin exists"):
        save(load(external), out / "o.onnx")
    assert listing(out) == ["w.bin"]
    assert (out / "w.bin").read_bytes() == b"mine"


def test_the_weights_file_is_never_the_output(external: Path) -> None:
    with pytest.raises(UsageError, match="weights file"):
        save(load(external), external.parent / "w.bin", force=True)


def large(text: Text) -> ir.Model:
    proto = text(
        "g (float[1000] x) => (float[1000] y) { h = Add(x, a) y = Mul(h, b) }".replace("(x, a)", "(x, x)").replace(
            "(h, b)", "(h, x)"
        )
    )
    for name, value in (("a", 1.0), ("b", 2.0)):
        proto.graph.initializer.append(numpy_helper.from_array(np.full(1000, value, np.float32), name))
    proto.graph.node[0].input[1] = "a"
    proto.graph.node[1].input[1] = "b"
    return load(proto)


def test_what_does_not_fit_into_one_file_goes_beside_it(
    text: Text, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = large(text)
    before = ir.to_proto(model).SerializeToString(deterministic=True)
    monkeypatch.setattr(room, "MOST_BYTES", 5000)
    with pytest.raises(ModelError, match="2 GiB"):
        to_bytes(model)
    path = tmp_path / "m.onnx"
    save(model, path)
    assert listing(tmp_path) == ["m.onnx", "m.onnx.data"]
    np.testing.assert_array_equal(run(path), np.full(1000, 4))
    assert external_tensors(model) == []
    assert ir.to_proto(model).SerializeToString(deterministic=True) == before
    # Over itself, with the weights that it maps while it writes.
    again = load(path)
    value = again.graph.initializers["a"]
    value.const_value = ir.Tensor(np.full(1000, 5, np.float32), name="a")
    monkeypatch.setattr(room, "MOST_BYTES", 3000)
    save(again, path, source=path, force=True)
    np.testing.assert_array_equal(run(path), np.full(1000, 12))
    assert [name[:12] for name in listing(tmp_path)] == ["m.onnx", "m.onnx.data", "m.onnx.data."]


def test_a_failure_leaves_no_weights_beside(text: Text, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "MOST_BYTES", 5000)
    seen = []

    def refuse(model: ir.Model, file: BinaryIO, **named: str) -> None:
        seen.append(listing(tmp_path))
        write_model(model, file, **named)
        raise UsageError("no")

    monkeypatch.setattr(room, "write_model", refuse)
    with pytest.raises(UsageError):
        save(large(text), tmp_path / "m.onnx")
    assert "m.onnx.data" in seen[-1]
    assert listing(tmp_path) == []


def test_zeros_beside_a_model_are_holes(text: Text, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first weight ends in zeros, the second is zeros alone but for its last element, the third zeros alone."""
    monkeypatch.setattr(room, "MOST_BYTES", 5000)
    count = 2**20
    weights = [np.zeros(count, np.float32) for _ in range(3)]
    weights[0][:1000], weights[1][-1] = 2, 3
    names = ("a", "b", "c")
    proto = text(f"""g (float[{count}] x) => (float[{count}] y) {{ s = Sum(x, a, b) y = Add(s, c) }}""")
    proto.graph.initializer.extend(numpy_helper.from_array(*pair) for pair in zip(weights, names, strict=True))
    path = tmp_path / "m.onnx"
    save(load(proto), path)
    data = path.with_name("m.onnx.data")
    assert data.read_bytes() == b"".join(weight.tobytes() for weight in weights)
    assert data.stat().st_blocks * 512 < 2**19
    x = np.ones(count, np.float32)
    np.testing.assert_array_equal(Session(path).run({"x": x})["y"], x + sum(weights))


@pytest.mark.slow
def test_more_than_2_gib_unasked_go_beside_the_model(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """Three weights of 1 GiB in memory: the fused model has a file of data beside it, from which onnxruntime computes the same."""
    if not request.config.getoption("--slow", default=False):
        pytest.skip("3 GiB; run with --slow")
    rows, columns = 2**18, 2**10
    names, values_of_rows = ("w0", "w1", "w2"), (0.25, 0.5, 1.0)
    proto = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["" : 17]>
        g (int64[1] x) => (float[1, 1024] y) {
            r0 = Gather(w0, x) r1 = Gather(w1, x) r2 = Gather(w2, x) s = Add(r0, r1) z = Add(s, r2) y = Relu(z) }""")
    graph = ir.from_proto(proto)
    for name, number in zip(names, values_of_rows, strict=True):
        weight = np.zeros((rows, columns), np.float32)
        weight[-1] = number
        value = next(v for node in graph.graph for v in node.inputs if v is not None and v.name == name)
        value.const_value = ir.Tensor(weight, name=name)
        value.shape, value.type = ir.Shape(weight.shape), ir.TensorType(ir.DataType.FLOAT)
        graph.graph.initializers.add(value)
    path = tmp_path / "m.onnx"
    api.fuse(graph, "Add->Relu", verify=False).save(path)
    assert path.stat().st_size < 10_000
    assert path.with_name("m.onnx.data").stat().st_size == 3 * 2**30
    got = Session(path).run({"x": np.array([rows - 1])})["y"]
    np.testing.assert_array_equal(got, np.full((1, columns), 1.75, np.float32))
    assert api.inspect(path).to_dict()["parameters"]


BYTES = """
import hashlib, sys
from onnxtile.system.registry import defer_libraries
defer_libraries()
from onnxtile.model.load import load
from onnxtile.model.save import to_bytes
print(hashlib.sha256(to_bytes(load(sys.argv[1]))).hexdigest())
"""


def test_the_bytes_do_not_depend_on_the_hash_seed(small: onnx.ModelProto, tmp_path: Path) -> None:
    for index in range(20):
        small.metadata_props.add(key=f"key {index}", value=str(index))
        small.graph.node[0].metadata_props.add(key=f"key {index}", value=str(index))
    path = tmp_path / "m.onnx"
    onnx.save(small, path)
    # This process has a seed of its own, a random one.
    environment = {**os.environ, "PYTHONHASHSEED": "42"}
    done = subprocess.run(
        [sys.executable, "-c", BYTES, str(path)], capture_output=True, text=True, check=True, env=environment
    )
    assert done.stdout.strip() == hashlib.sha256(to_bytes(load(path))).hexdigest()


@pytest.mark.parametrize(("before", "after"), [(3, 10), (8, 10), (10, 10), (12, 12), (13, 13), (14, 13)])
def test_the_ir_version_carries_metadata_and_loads_in_onnxruntime(
    small: onnx.ModelProto, before: int, after: int
) -> None:
    model = ir.from_proto(small)
    model.ir_version = before
    raise_ir_version(model)
    assert model.ir_version == after


@pytest.mark.skipif(not LIGHT.is_dir(), reason="this onnx wheel has no light models")
@pytest.mark.parametrize("name", ["light_squeezenet", "light_shufflenet"])
def test_initializers_of_old_models_are_no_inputs_afterwards(name: str, tmp_path: Path) -> None:
    source = LIGHT / f"{name}.onnx"
    model = load(source)
    assert model.ir_version == 3
    raise_ir_version(model)
    assert len(model.graph.inputs) == 1
    with pytest.warns(ModelWarning, match="are constants alone in the new model"):
        save(model, tmp_path / "m.onnx")
    shape = [1, 3, 224, 224]
    feeds = {Session(source).inputs[0].name: np.random.default_rng(0).random(shape, np.float32)}
    before, after = Session(source).run(feeds), Session(tmp_path / "m.onnx").run(feeds)
    for key, array in before.items():
        np.testing.assert_array_equal(after[key], array)


def test_a_model_is_written_tensor_by_tensor_and_reads_back_the_same(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    arrays = {"small": random.standard_normal(4), "large": random.standard_normal((40, 30)), "half": np.ones(2000)}
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node("Identity", ["large"], ["y"])],
        "g",
        [],
        [onnx.helper.make_tensor_value_info("y", onnx.TensorProto.DOUBLE, [40, 30])],
        [
            numpy_helper.from_array(array.astype(np.float16) if name == "half" else array, name)
            for name, array in arrays.items()
        ],
        doc_string="text",
    )
    source = onnx.helper.make_model(graph, ir_version=10, opset_imports=[onnx.helper.make_opsetid("", 17)])
    onnx.helper.set_model_props(source, {"key": "value"})
    save(load(source), tmp_path / "m.onnx")
    written = onnx.load(tmp_path / "m.onnx")
    assert [tensor.SerializeToString() for tensor in written.graph.initializer] == [
        tensor.SerializeToString() for tensor in source.graph.initializer
    ]
    del written.graph.value_info[:]
    assert written == source


def test_threads_that_write_at_once_leave_the_mask_of_new_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The mask is asked for by setting it; here that takes so long that the threads are in it together."""
    umask, before = os.umask, os.umask(0o027)

    def slow(mask: int) -> int:
        found = umask(mask)
        time.sleep(0.01)
        return found

    monkeypatch.setattr(os, "umask", slow)
    try:
        with ThreadPoolExecutor(4) as threads:
            list(threads.map(lambda i: write_whole(tmp_path / f"{i}", b"x"), range(8)))
    finally:
        after = umask(before)
    assert after == 0o027
    assert {path.stat().st_mode & 0o777 for path in tmp_path.iterdir()} == {0o640}
