"""No option writes over what is read, over weights that are read, or over what another writes."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

Run = Callable[..., Any]


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


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


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
    assert (done.code, done.out) == (2, ""), done
    assert done.err.startswith("error: ") and done.err.count("\n") == 1
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
