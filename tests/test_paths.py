"""Paths that name no file that can be read: refused before they are opened."""

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from onnxtile import api
from onnxtile.fusion.pattern import from_file as pattern_file
from onnxtile.model.load import digest, load
from onnxtile.model.npz_inputs import read_inputs
from onnxtile.pipeline.file import from_file as pipeline_file
from onnxtile.report.format import read_plan
from onnxtile.system.errors import ModelError, OnnxtileError, UsageError
from onnxtile.system.files import real, require_readable, require_writable
from onnxtile.tiling.limits import from_file as limits_file


def _folder(path: Path) -> None:
    path.mkdir()


def _loop(path: Path) -> None:
    path.symlink_to(path.with_name("other"))
    path.with_name("other").symlink_to(path)


def _device(path: Path) -> None:
    path.symlink_to("/dev/zero")


BAD = {
    "folder": (_folder, "Is a directory"),
    "pipe": (os.mkfifo, "not a regular file"),
    "device": (_device, "not a regular file"),
    "loop": (_loop, "symbolic links"),
    "missing": (lambda _: None, "no such file"),
}
READERS: dict[str, Callable[[Path], object]] = {
    "load": load,
    "digest": digest,
    "inputs": lambda path: read_inputs(path, load("models/transformer.onnx")),
    "problem": api.plan_problem,
    "plan": read_plan,
    "pipeline": pipeline_file,
    "pattern": pattern_file,
    "limits": limits_file,
}


@pytest.mark.parametrize("bad", BAD)
@pytest.mark.parametrize("reader", READERS)
def test_what_is_no_regular_file_is_not_opened(tmp_path: Path, bad: str, reader: str) -> None:
    make, message = BAD[bad]
    path = tmp_path / "x"
    make(path)
    with pytest.raises(OnnxtileError, match=message) as caught:
        READERS[reader](path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("name", ["a\0b", "x" * 300])
def test_what_no_file_can_be_called(tmp_path: Path, reader: str, name: str) -> None:
    with pytest.raises(OnnxtileError, match=r"is not a valid path|too long"):
        READERS[reader](tmp_path / name)


def test_a_link_to_a_file_is_taken(tmp_path: Path, transformer: Path) -> None:
    link = tmp_path / "m.onnx"
    link.symlink_to(transformer)
    require_readable(link, ModelError)
    assert real(link) == real(transformer)


@pytest.mark.parametrize("name", ["loop", "a\0b", "x" * 300])
def test_nothing_is_written_to_what_can_be_no_file(tmp_path: Path, name: str) -> None:
    _loop(tmp_path / "loop")
    with pytest.raises(UsageError, match=r"symbolic links|is not a valid path|too long"):
        require_writable(tmp_path / name)


def test_external_data_in_a_circle_of_links_is_missing(tmp_path: Path, transformer: Path) -> None:
    import onnx

    model = onnx.load(transformer)
    tensor = onnx.numpy_helper.from_array(np.zeros(64, np.float32), "extra")
    tensor.ClearField("raw_data")
    tensor.data_location = onnx.TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="loop")
    model.graph.initializer.append(tensor)
    onnx.save(model, tmp_path / "m.onnx")
    _loop(tmp_path / "loop")
    with pytest.raises(ModelError, match="'loop' of 'extra' is missing"):
        load(tmp_path / "m.onnx")
