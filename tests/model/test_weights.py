"""Files of weights stay inside the folder of the model that is written, and are never written over."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from onnxtile import api
from onnxtile.model.load import external_tensors, load
from onnxtile.model.save import save
from onnxtile.system.errors import UsageError
from onnxtile.system.files import require_writable, weights_beside

Locate = Callable[[str], None]


@pytest.fixture(name="locate")
def _locate(external: Path) -> Locate:
    """Give a function that says where the weights of the model `external` are, which stays beside them."""

    def locate(location: str) -> None:
        proto = onnx.load(external, load_external_data=False)
        for tensor in proto.graph.initializer:
            next(entry for entry in tensor.external_data if entry.key == "location").value = location
        onnx.save(proto, external)

    return locate


def everything(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if not path.is_dir())


def weights_of(path: Path) -> np.ndarray:
    tensor = load(path).graph.initializers["w"].const_value
    assert tensor is not None
    return tensor.numpy()


@pytest.mark.parametrize("folder", ["in", "b/out"])
@pytest.mark.parametrize("location", ["../in/w.bin", "sub/../w.bin", "./../in/w.bin"])
def test_a_location_by_way_of_other_folders_is_made_straight(
    external: Path, locate: Locate, tmp_path: Path, location: str, folder: str
) -> None:
    (external.parent / "sub").mkdir()
    locate(location)
    out = tmp_path / folder
    out.mkdir(parents=True, exist_ok=True)
    before = everything(tmp_path)
    save(load(external), out / "o.onnx")
    assert everything(tmp_path) == sorted({*before, f"{folder}/o.onnx", f"{folder}/w.bin"})
    assert {Path(tensor.location).name for tensor in external_tensors(load(out / "o.onnx"))} == {"w.bin"}
    assert b".." not in (out / "o.onnx").read_bytes()
    np.testing.assert_array_equal(weights_of(out / "o.onnx"), np.arange(1000))
    onnx.load(out / "o.onnx")


def test_a_constant_node_with_weights_in_a_file_is_taken_along(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "out").mkdir()
    array = np.arange(1000, dtype=np.float32)
    (tmp_path / "in" / "w.bin").write_bytes(array.tobytes())
    tensor = numpy_helper.from_array(array, "w")
    onnx.external_data_helper.set_external_data(tensor, "../in/w.bin", 0, 4000)
    tensor.ClearField("raw_data")
    y = helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [1000])
    graph = helper.make_graph([helper.make_node("Constant", [], ["y"], value=tensor)], "g", [], [y])
    onnx.save(helper.make_model(graph, ir_version=10), tmp_path / "in" / "m.onnx")
    save(load(tmp_path / "in" / "m.onnx"), tmp_path / "out" / "o.onnx")
    assert everything(tmp_path) == ["in/m.onnx", "in/w.bin", "out/o.onnx", "out/w.bin"]
    assert [str(tensor.location) for tensor in external_tensors(load(tmp_path / "out" / "o.onnx"))] == ["w.bin"]


def test_a_folder_that_is_a_link_out_of_the_output_folder_is_not_written_to(
    external: Path, locate: Locate, tmp_path: Path
) -> None:
    (external.parent / "sub").mkdir()
    (external.parent / "w.bin").rename(external.parent / "sub" / "w.bin")
    locate("sub/w.bin")
    for name in ("out", "elsewhere"):
        (tmp_path / name).mkdir()
    (tmp_path / "out" / "sub").symlink_to(tmp_path / "elsewhere")
    before = everything(tmp_path)
    with pytest.raises(UsageError, match="outside of"):
        save(load(external), tmp_path / "out" / "o.onnx")
    assert everything(tmp_path) == before


def test_a_model_is_not_written_to_where_its_weights_go(external: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    with pytest.raises(UsageError, match="weights file of the model"):
        save(load(external), out / "w.bin")
    assert everything(out) == []


@pytest.mark.parametrize("force", [False, True])
def test_the_weights_of_the_source_are_not_written_over(external: Path, force: bool) -> None:
    """Also where the model to be written reads none of them any more."""
    weights = external.parent / "w.bin"
    for name in ("w.bin", "../in/w.bin"):
        with pytest.raises(UsageError, match="weights file of"):
            require_writable(external.parent / name, source=external, force=force)
    (external.parent / "link").symlink_to(weights)
    with pytest.raises(UsageError, match="weights file of"):
        require_writable(external.parent / "link", source=external, force=force)
    proto = onnx.parser.parse_model(
        '<ir_version: 10, opset_import: ["" : 17]> g (float[1] x) => (float[1] y) { y = Relu(x) }'
    )
    with pytest.raises(UsageError, match="weights file of"):
        api.save(load(proto), weights, source=external, force=force)
    np.testing.assert_array_equal(weights_of(external), np.arange(1000))


@pytest.mark.parametrize("location", ["w.bin", "sub/w.bin", "sub/../w.bin"])
def test_weights_go_beside_a_target_under_their_own_names(tmp_path: Path, location: str) -> None:
    model = model_naming(tmp_path, location)
    expected = tmp_path / "out" / os.path.normpath(location)
    assert weights_beside(tmp_path / "out/o.onnx", model) == {expected}


def test_weights_named_by_a_whole_path_are_told_from_those_outside(tmp_path: Path) -> None:
    """The model may be named from its own folder, where its path has no folder in it."""
    target = tmp_path / "out/o.onnx"
    assert weights_beside(target, model_naming(tmp_path, str(tmp_path / "w.bin"))) == {tmp_path / "out/w.bin"}
    assert weights_beside(target, model_naming(tmp_path, "/etc/passwd")) == {Path("/etc/passwd")}


def model_naming(folder: Path, location: str) -> Path:
    """Write a model of one initializer whose bytes are at `location`."""
    tensor = onnx.TensorProto(name="w", dims=[1], data_type=1, data_location=onnx.TensorProto.EXTERNAL)
    tensor.external_data.add(key="location", value=location)
    path = folder / "m.onnx"
    path.write_bytes(onnx.ModelProto(graph=onnx.GraphProto(initializer=[tensor])).SerializeToString())
    return path
