"""Typical mistakes get one line that says what to do, and leave every file as it was."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from tests.build import parsed
from tests.cli.conftest import Run, files

# Typical mistakes get one line that says what to do, and leave every file as it was; so does Ctrl-C.


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("fuse", "models/m.onnx"), ("error: models/m.onnx: no such file\n",)),
        (("plan", "mm.onnx"), ("error: mm.onnx: no such file (did you mean m.onnx?)",)),
        (("verify", "m.onnx", "othr.onnx"), ("othr.onnx: no such file (did you mean other.onnx?)",)),
        (("pattern", "new", "--from", "n.onnx", "--nodes", "a"), ("n.onnx: no such file",)),
        (("run", "p.tml", "m.onnx"), ("p.tml: no such file (did you mean p.toml?)",)),
        (("fuse", "m.onnx", "--json", "m.onnx"), ("--json", "over what is read")),
        (("match", "m.onnx", "MatMul", "--json", "m.onnx"), ("--json", "over what is read")),
        (("verify", "m.onnx", "other.onnx", "--json", "other.onnx"), ("--json", "over what is read")),
        (("run", "p.toml", "m.onnx", "--json", "p.toml"), ("--json", "over what is read")),
        (("inspect", "m.onnx", "--emit", "a.json", "--json", "./a.json"), ("--json and --emit", "name two files")),
        (("plan", "m.onnx", "--emit", "a.json", "--emit", "a.json"), ("--emit and --emit",)),
        (("fuse", "m.onnx", "-o", "a.onnx", "--json", "a.onnx"), ("--json and -o",)),
        (("inspect", "m.onnx", "--emit", "m.onnx"), ("over what is read",)),
        (("pattern", "new", "--from", "m.onnx", "--nodes", " ,"), ("names no node", "onnxtile inspect MODEL")),
        (("pattern", "new", "--from", "m.onnx", "--nodes", "a"), ("no node 'a'", "onnxtile inspect MODEL")),
        (("fuse", "m.onnx", "-o", "/dev/full", "-p", "LayerNorm", "--no-verify"), ("/dev/full", "No space left")),
        (("match", "m.onnx", "MatMul", "--json", "/dev/full"), ("/dev/full", "No space left")),
        (("demo", "m.onnx"), ("m.onnx",)),
        (("run", "m.onnx", "m.onnx"), ("m.onnx: this is a model, not a TOML file",)),
        (
            ("plan", "m.onnx", "--io", "inside", "--io", "outside"),
            ("--io 'outside'", "given twice, with inside before"),
        ),
        (("fit", "m.onnx", "--capacity", "1KiB", "--budget", "0s"), ("--budget '0s'", "a search takes some time")),
        (("fit", "m.onnx", "--capacity", "1KiB", "--io", "insid"), ("--io 'insid'", "did you mean 'inside'?")),
        (
            ("fit", "m.onnx", "--capacity", "1KiB", "--io", "inside", "--io", "outside"),
            ("'outside' is the second place",),
        ),
        (
            ("fuse", "m.onnx", "--explain", "LayerNorm", "-o", "e.onnx"),
            ("--explain writes no model", "leave --output out"),
        ),
        (("run", "p.toml", "m.onnx", "-o", "m.onnx"), ("-o names a folder",)),
        (("run", "p.toml", "m.onnx", "m.onnx"), ("written to one file",)),
        (
            ("run", "p.toml", "m.onnx", "--scheduler", "x"),
            ("--scheduler 'x' needs a cluster (add --backend dask)",),
        ),
        (
            ("plan", "m.onnx", "--capacity", "a=1KiB", "--capacity", "a=2KiB"),
            ("invalid --capacity a=2KiB", "'a' is given twice"),
        ),
        (("plan", "m.onnx", "--inputs", "image=5:1"), ("--inputs 'image=5:1'", "is empty")),
        (("plan", "m.onnx", "--inputs", "image=many"), ("--inputs 'image=many'", "LOW:HIGH")),
        (("plan", "m.onnx", "--inputs", "a.npz", "--inputs", "b.npz"), ("two files of inputs",)),
        (("plan", "m.onnx", "--inputs", "image=0:1", "--inputs", "image=0:2"), ("'image' has two ranges",)),
        (("plan", "m.onnx", "--inputs", "m.onnx"), ("m.onnx is not an .npz file",)),
        (("plan", "m.onnx", "--inputs", "image=-1e308:1e308"), ("too wide",)),
        (("plan", "m.onnx", "--inputs", "image=nan"), ("too wide",)),
        (("plan", "m.onnx", "--inputs", "image=0:1e300"), ("wider than its element type",)),
        (("verify", "m.onnx", "m.onnx", "--runs", "9" * 20), ("--runs", "from 1 to 1,000,000")),
        (("tile", "m.onnx", "--max", "8", "--runs", "9" * 20), ("--runs", "from 1 to 1,000,000")),
        (("plan", "m.onnx", "--shape", f"image={'9' * 100}x1"), ("not a shape", "1x3x224x224")),
        (("plan", "m.onnx", "--runs", "0s"), ("invalid --runs '0s'", "above 0")),
        (
            ("plan", "m.onnx", "--runs", "lots"),
            ("invalid --runs 'lots'", "neither a number of runs, a time, nor a size"),
        ),
        (("plan", "m.onnx", "--runs", "3,4"), ("invalid --runs '3,4'", "second of its kind")),
        (("fuse", "m.onnx", "--runs", "3"), ("invalid --runs 3", "a number of runs is for tile, plan and verify")),
        (("fuse", "."), (".: Is a directory",)),
        (("tile", "m.onnx", "--target", "p.toml"), ("p.toml:1", "unknown key 'steps'")),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else None,
)
def test_a_mistake_is_one_line(run: Run, folder: Path, arguments: tuple[str, ...], words: tuple[str, ...]) -> None:
    (folder / "other.onnx").write_bytes((folder / "m.onnx").read_bytes())
    (folder / "p.toml").write_text('[[steps]]\ndo = "unfuse"\n')
    before = files(folder)
    done = run(*arguments)
    assert "internal error" not in done.err
    done.require_error(*words)
    assert files(folder) == before


def test_devices_take_more_than_one(run: Run, folder: Path) -> None:
    done = run("inspect", folder / "m.onnx", "--json", "/dev/null", "-q")
    assert (done.code, done.out, done.err) == (0, "", "")


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_an_interrupted_command_leaves_nothing(folder: Path, number: signal.Signals, code: int) -> None:
    """It is stopped while it writes a model that is larger than the pipe before it."""
    command = [sys.executable, "-m", "onnxtile", "fuse", "m.onnx", "-p", "LayerNorm", "--no-verify", "-o", "-"]
    before = files(folder)
    with subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stdout.read(1)
        process.send_signal(number)
        _, err = process.communicate(timeout=60)
    assert process.returncode == code
    assert err == (b"error: interrupted\n" if number is signal.SIGINT else b"")
    assert files(folder) == before


def test_a_closed_pipe_ends_quietly(folder: Path) -> None:
    """As in `onnxtile ... | head`, for tables, JSON and models."""
    command = f"{sys.executable} -m onnxtile"
    for line in (
        "match m.onnx . --json -",
        "fuse m.onnx -p LayerNorm --no-verify -o -",
        "inspect m.onnx",
    ):
        script = f"{command} {line} | true; exit ${{PIPESTATUS[0]}}"
        done = subprocess.run(["bash", "-c", script], cwd=folder, capture_output=True, text=True, check=False)
        assert (done.returncode, done.stderr) == (141, ""), line


def test_a_full_disk_behind_stdout_is_said(folder: Path) -> None:
    done = subprocess.run(
        ["bash", "-c", f"{sys.executable} -m onnxtile match m.onnx . > /dev/full"],
        cwd=folder, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (2, "error: stdout: No space left on device\n")


@pytest.mark.parametrize(
    "arguments",
    [("plan", "m.onnx", "--emit", "a\nb"), ("plan", "m.onnx", "--search", "a\nb^"), ("inspect", "a\nb\n^^.onnx")],
)
def test_a_line_that_ends_in_an_argument_does_not_end_in_the_message(
    run: Run, folder: Path, arguments: tuple[str, ...]
) -> None:
    before = files(folder)
    done = run(*arguments)
    done.require_error()
    assert files(folder) == before


# No option writes over what is read, over weights that are read, or over what another writes.


@pytest.fixture(name="models", autouse=True)
def _models(tmp_path: Path) -> Path:
    """Two models with their weights in one file, and inputs for them."""
    proto = onnx.parser.parse_model(
        '<ir_version: 10, opset_import: ["" : 17]> g (float[64] x) => (float[64, 64] y) { y = MatMul(x, x) }'
    )
    proto.graph.node[0].input[1] = "w"
    proto.graph.output[0].type.tensor_type.shape.ClearField("dim")
    proto.graph.initializer.append(numpy_helper.from_array(np.ones((64, 64), np.float32), "w"))
    for name in ("a", "b"):
        onnx.save(proto, tmp_path / f"{name}.onnx", save_as_external_data=True, location="w.json", size_threshold=0)
    np.savez(tmp_path / "x.npz", x=np.ones(64, np.float32))
    (tmp_path / "my.toml").write_text('name = "M"\ndoc = "A product."\n[[variants]]\nquery = "MatMul"\n')
    (tmp_path / "deploy.toml").write_text('[[steps]]\ndo = "fuse"\n')
    (tmp_path / "out").mkdir()
    return tmp_path


@pytest.mark.parametrize(
    "arguments",
    [
        *(f"{verb} a.onnx {{}} --force -o w.json" for verb in ("fuse", "tile --max 32", "plan", "unfuse")),
        *(f"{verb} a.onnx {{}} --json w.json" for verb in ("fuse", "tile --max 32", "plan", "unfuse", "inspect")),
        "verify a.onnx b.onnx --json ./w.json",
        "match a.onnx MatMul --json w.json",
        "plan a.onnx --emit w.json",
        "inspect a.onnx --emit w.json",
        "inspect a.onnx --trace MatMul -o w.json",
        "inspect a.onnx --trace MatMul --inputs x.npz -o x.npz",
        "fuse a.onnx -p my.toml -o my.toml",
        "pattern new --from a.onnx --nodes y -o w.json",
        "fuse a.onnx --json a.fused.onnx",
        "tile a.onnx --max 32 --json a.tiled.onnx",
        "plan a.onnx --json out/../a.planned.onnx",
        "unfuse a.onnx --json a.unfused.onnx",
        "fuse a.onnx -o out/o.onnx --json out/w.json",
        "plan a.onnx -o out/o.onnx --emit out/w.json",
        "fuse a.onnx -o out/o.onnx --json out/o.onnx.data",
        "run deploy.toml a.onnx --json a.deploy.onnx",
        "run deploy.toml a.onnx --json a.deploy.report.json",
        "run deploy.toml a.onnx --json w.json",
    ],
)
def test_nothing_is_written_over(run: Run, models: Path, arguments: str) -> None:
    before = files(models)
    done = run(*arguments.replace(" {}", "").split())
    done.require_error()
    assert any(
        word in done.err for word in ("weights", "over what is read", "where the model is written", "another use")
    )
    assert files(models) == before


def test_what_is_apart_is_written(run: Run, models: Path) -> None:
    done = run("tile", "a.onnx", "--max", "32", "-o", "out/o.onnx", "--json", "out/o.json", "--no-verify")
    assert done.code == 0, done.err
    assert {"out/o.onnx", "out/o.json"} <= set(files(models))


def test_weights_outside_of_the_folder_are_refused_in_one_line(run: Run, models: Path) -> None:
    """The model is named from its own folder: its path has no folder in it."""
    proto = onnx.load(models / "a.onnx", load_external_data=False)
    next(entry for entry in proto.graph.initializer[0].external_data if entry.key == "location").value = "/etc/passwd"
    onnx.save(proto, models / "a.onnx")
    done = run("plan", "a.onnx", "--emit", "p.svg", "-o", "out/o.onnx")
    assert (done.code, done.err.count("\n")) == (2, 1)
    assert "lies outside the model's folder" in done.err


@pytest.mark.usefixtures("folder")
def test_a_folder_where_nothing_can_be_written_is_found_before_the_work(run: Run) -> None:
    """In /proc no user makes files, nor root."""
    for option in ("-o", "--emit", "--json"):
        done = run("plan", "m.onnx", option, "/proc/x.json")
        assert (done.code, done.out) == (2, "")
        assert done.err == "error: /proc/x.json cannot be written: No such file or directory\n"


def test_no_hint_names_an_option_that_the_command_does_not_have(run: Run, tmp_path: Path) -> None:
    model = parsed("g (float[4] x) => (float[4] y) { y = my.ops.Magic(x) }", my_ops=1)
    onnx.save(model, tmp_path / "magic.onnx")
    lacking = "error: onnxruntime's CPU has no kernel for my.ops.Magic"
    assert run("verify", "magic.onnx", "magic.onnx").err == f"{lacking}\n"
    assert run("inspect", "magic.onnx", "--trace", "y").err == f"{lacking}\n"
