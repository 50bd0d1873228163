"""Models with data beside them: at any time, the model that is there has the data that it was written with."""

from __future__ import annotations

import os
import resource
import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import numpy_helper

from onnxtile.model import save as beside
from onnxtile.model.load import external_tensors, load
from onnxtile.model.save import save
from onnxtile.system import files as weights
from onnxtile.system.errors import ModelError, UsageError

MOVES = ("replace", "rename", "unlink", "chmod")
"""The methods of Path by which files come and go; the other steps are functions of tempfile, shutil and onnx_ir."""


@pytest.fixture(autouse=True)
def _small_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """One file takes 5000 bytes, in place of 2 GiB."""
    monkeypatch.setattr(beside, "MOST_BYTES", 5000)


def model_of(number: float) -> ir.Model:
    """A model whose constants all have the elements `number`: one small enough to be in the file, two that do not fit."""
    proto = onnx.parser.parse_model(
        '<ir_version: 10, opset_import: ["" : 17]> g (float[1000] x) => (float[1000] y)'
        "{ h = Add(x, x) i = Add(h, h) y = Mul(i, i) }"
    )
    for place, (name, size) in enumerate((("small", 1), ("a", 1000), ("b", 1000))):
        proto.graph.initializer.append(numpy_helper.from_array(np.full(size, number, np.float32), name))
        proto.graph.node[place].input[1] = name
    return load(proto)


def number_at(path: Path) -> float:
    """Return the number that all constants of the model at `path` have; they are of one model if it is one."""
    found = {float(one) for value in load(path).graph.initializers.values() for one in elements(value)}
    assert len(found) == 1
    return found.pop()


def elements(value: ir.Value) -> Any:
    assert value.const_value is not None
    return np.unique(value.const_value.numpy())


def listing(folder: Path) -> list[str]:
    return sorted(file.name for file in folder.iterdir())


class Stop:
    """Counts the steps of a save, and ends it before or after one of them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, at: int, late: bool, end: Callable[[], None]) -> None:
        self.at, self.late, self.end, self.count = at, late, end, 0
        for name in MOVES:
            monkeypatch.setattr(Path, name, self.watched(getattr(Path, name)))
        monkeypatch.setattr(tempfile, "mkstemp", self.watched(tempfile.mkstemp))
        convert = self.watched(ir.external_data.convert_tensors_to_external)
        monkeypatch.setattr(ir.external_data, "convert_tensors_to_external", convert)
        monkeypatch.setattr(beside, "remove_unread", self.watched(beside.remove_unread))

    def watched(self, step: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any, **options: Any) -> Any:
            self.count += 1
            here = self.count == self.at
            if here and not self.late:
                self.end()
            result = step(*args, **options)
            if here and self.late:
                self.end()
            return result

        return run


def interrupt() -> None:
    raise KeyboardInterrupt


STEPS = range(1, 16)


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("at", STEPS)
def test_an_interruption_at_any_step_leaves_a_model_with_its_own_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: int, late: bool
) -> None:
    path = tmp_path / "m.onnx"
    save(model_of(1), path)
    with monkeypatch.context() as patch:
        stop = Stop(patch, at, late, interrupt)
        try:
            save(model_of(2), path)
        except KeyboardInterrupt:
            pass
        else:
            assert stop.count < at
    number = number_at(path)
    assert number in {1, 2}
    data = {Path(tensor.location).name for tensor in external_tensors(load(path))}
    assert data <= set(listing(tmp_path))
    if stop.count < at:
        assert number == 2
        assert listing(tmp_path) == ["m.onnx", *data]
    # What is left of it is never in the way.
    save(model_of(3), path)
    assert number_at(path) == 3


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("at", STEPS)
def test_a_killed_writer_leaves_a_model_with_its_own_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: int, late: bool
) -> None:
    path = tmp_path / "m.onnx"
    save(model_of(1), path)
    model = model_of(2)

    def work() -> None:
        Stop(monkeypatch, at, late, lambda: os.kill(os.getpid(), signal.SIGKILL))
        save(model, path)

    assert in_a_process(work) in {0, -signal.SIGKILL}
    assert number_at(path) in {1, 2}
    save(model_of(3), path)  # which waits for nobody
    assert number_at(path) == 3


def in_a_process(work: Callable[[], None]) -> int:
    """Return the exit code of a process that does `work`; the number of the signal, negative, where one ended it."""
    return ended(started(work))


def started(work: Callable[[], None]) -> int:
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        work()
        code = 0
    finally:
        os._exit(code)


def ended(child: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def test_steps_are_all_there_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "m.onnx"
    save(model_of(1), path)
    stop = Stop(monkeypatch, 0, False, interrupt)
    save(model_of(2), path)
    assert 6 <= stop.count < max(STEPS)


def test_writers_at_once_never_mix(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    save(model_of(0), path)

    def work(first: int) -> None:
        models = [model_of(first + i) for i in range(3)]
        for model in models * 5:
            save(model, path)

    children = [started(partial(work, first)) for first in (1, 11, 21)]
    seen, end = set(), time.monotonic() + 60
    while children and time.monotonic() < end:
        seen.add(number_if_kept(path))
        for child in [one for one in children if os.waitpid(one, os.WNOHANG)[0]]:
            children.remove(child)
    assert not children
    last = number_at(path)
    assert last in {*range(1, 4), *range(11, 14), *range(21, 24)}
    assert len(seen) > 1
    data = {Path(tensor.location).name for tensor in external_tensors(load(path))}
    assert len(data) == 1
    assert listing(tmp_path) == ["m.onnx", *data]


def number_if_kept(path: Path) -> float | None:
    """Return the number of the model at `path`; None where its data were removed while it was read, as another replaced it."""
    before = path.stat()
    try:
        return number_at(path)
    except (ModelError, FileNotFoundError):
        now = path.stat()
        assert (now.st_ino, now.st_mtime_ns) != (before.st_ino, before.st_mtime_ns)
        return None


def test_writers_of_several_models_keep_apart_what_they_carry(tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    sources = []
    for number in (1, 2):
        folder = tmp_path / str(number)
        folder.mkdir()
        proto = ir.to_proto(model_of(number))
        onnx.save(proto, folder / "m.onnx", save_as_external_data=True, location="w.bin", size_threshold=100)
        sources.append(load(folder / "m.onnx"))
    children = [started(partial(save, source, out / f"{place}.onnx")) for place, source in enumerate(sources)]
    codes = [ended(child) for child in children]
    assert sorted(codes) == [0, 1]  # the second finds weights of another model under the name
    winner = codes.index(0)
    assert listing(out) == [f"{winner}.onnx", "w.bin"]
    assert number_at(out / f"{winner}.onnx") == winner + 1


def test_a_full_disk_leaves_the_old_model_and_its_data(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    save(model_of(1), path)
    before = {file.name: file.read_bytes() for file in tmp_path.iterdir()}
    model = model_of(2)

    def work() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (6000, 6000))
        with pytest.raises(UsageError, match="cannot be written"):
            save(model, path)

    assert in_a_process(work) == 0
    assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == before


def test_a_disk_that_is_full_for_the_model_takes_the_new_data_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "m.onnx"
    save(model_of(1), path)
    before = {file.name: file.read_bytes() for file in tmp_path.iterdir()}

    def refuse(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", refuse)
        with pytest.raises(UsageError, match="No space left"):
            save(model_of(2), path)
    assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == before


def test_the_same_model_twice_gives_the_same_files(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    found = []
    for _ in range(3):
        save(model_of(1), path)
        found.append({file.name: file.read_bytes() for file in tmp_path.iterdir()})
    assert sorted(found[0]) == ["m.onnx", "m.onnx.data"]
    assert found[0] == found[1] == found[2]


def test_data_are_replaced_under_another_name(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    save(model_of(1), path)
    names = ["m.onnx.data"]
    for number in (2, 3, 1):
        save(model_of(number), path)
        model, name = listing(tmp_path)
        assert (model, number_at(path)) == ("m.onnx", number)
        assert name.startswith("m.onnx.data.")
        names.append(name)
    assert len(set(names)) == 4  # who has read an older model finds no other data under their name
    save(model_of(3), path)
    assert listing(tmp_path) == ["m.onnx", names[2]]


def test_data_that_another_model_names_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    save(model_of(1), path)
    save(load(path), tmp_path / "other.onnx")
    save(model_of(2), path)
    assert len(listing(tmp_path)) == 4
    assert (number_at(path), number_at(tmp_path / "other.onnx")) == (2, 1)


def test_data_that_a_copy_of_the_model_names_are_kept(tmp_path: Path) -> None:
    path, kept = tmp_path / "m.onnx", tmp_path / "m.onnx.bak"
    for number in (1, 2, 3):
        save(model_of(number), path)
        shutil.copyfile(path, kept) if number == 2 else None
    kept.rename(tmp_path / "bak.onnx")
    assert (number_at(path), number_at(tmp_path / "bak.onnx")) == (3, 2)


def test_data_that_a_killed_writer_left_are_removed_by_the_next(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    save(model_of(1), path)
    save(model_of(2), path)
    (name,) = (name for name in listing(tmp_path) if ".data" in name)
    save(model_of(3), path)
    (tmp_path / name).touch()
    (tmp_path / "m.onnx.data").touch()
    save(model_of(4), path)
    assert listing(tmp_path)[:2] == ["m.onnx", "m.onnx.data"]
    assert len(listing(tmp_path)) == 3


def test_a_file_that_only_has_the_name_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "m.onnx.data").write_bytes(b"mine")
    path = tmp_path / "m.onnx"
    save(model_of(1), path)
    save(model_of(2), path)
    assert (tmp_path / "m.onnx.data").read_bytes() == b"mine"
    assert len(listing(tmp_path)) == 3


def test_weights_of_another_name_are_never_removed(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    onnx.save(ir.to_proto(model_of(1)), path, save_as_external_data=True, location="weights.bin", size_threshold=100)
    save(model_of(2), path)
    assert listing(tmp_path) == ["m.onnx", "m.onnx.data", "weights.bin"]


def test_a_model_whose_weights_are_gone_is_not_written(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    save(model_of(1), path)
    model = load(path)
    (tmp_path / "m.onnx.data").unlink()
    with pytest.raises(UsageError, match="is gone"):
        save(model, tmp_path / "other.onnx")
    assert listing(tmp_path) == ["m.onnx"]


@pytest.fixture(name="named")
def _named(tmp_path: Path) -> Iterator[Path]:
    save(model_of(1), tmp_path / "m.onnx")
    yield tmp_path / "m.onnx"


@pytest.mark.parametrize("ending", ["onnx", "onnxtxt", "textproto", "onnxjson"])
def test_named_weights_are_those_of_the_file_in_any_format(named: Path, ending: str) -> None:
    other = named.with_name(f"other.{ending}")
    onnx.save(onnx.load(named, load_external_data=False), other)
    assert weights.named_weights(other) == {named.parent / "m.onnx.data"}


@pytest.mark.parametrize("size", [5, 64, 100, 1000])
def test_named_weights_are_found_across_pieces(named: Path, monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    monkeypatch.setattr(weights, "_CHUNK", size)
    monkeypatch.setattr(weights, "_LONGEST", 100)
    assert weights.named_weights(named) == {named.parent / "m.onnx.data"}


def test_a_file_that_is_no_model_names_no_weights(tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    (tmp_path / "cut").write_bytes(b"\x0a\x08location\x12")
    assert weights.named_weights(tmp_path / "empty") == frozenset()
    assert weights.named_weights(tmp_path / "cut") == frozenset()
    assert weights.named_weights(tmp_path / "none") == frozenset()
