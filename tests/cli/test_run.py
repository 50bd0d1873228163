"""onnxtile run: one report a model, one summary, and the exit code of a check."""

import json
import shutil
import socket
from pathlib import Path

import onnx
import onnx.parser
import pytest

from tests.cli.conftest import Run

PIPELINE = """[[steps]]
do = "fuse"
patterns = ["LayerNorm"]
verify = false
[[steps]]
do = "plan"
verify = false
[budgets]
max_arena = "16KiB"
min_fused = {LayerNorm = 30}
"""


def test_budgets_are_shown_with_what_they_allow(run: Run, folder: Path) -> None:
    (folder / "p.toml").write_text(PIPELINE)
    done = run("run", "p.toml", "m.onnx", "--json", "summary.json")
    assert (done.code, done.err) == (1, "")
    assert "min_fused.LayerNorm: 3, and is to be at least 30" in done.out
    assert "max_arena: " in done.out and "and is to be at most 16,384" in done.out
    assert "0 passed, 1 failed" in done.out
    (model,) = json.loads((folder / "summary.json").read_text())["models"]
    assert {one["budget"]: one["met"] for one in model["budgets"]} == {
        "max_arena": False, "min_fused.LayerNorm": False,
    }  # fmt: skip
    assert json.loads((folder / "m.p.report.json").read_text())["budgets"] == model["budgets"]
    (folder / "p.toml").write_text(PIPELINE.replace("16KiB", "1MiB").replace("30", "3"))
    done = run("run", "p.toml", "m.onnx", "--json", "-")
    assert (done.code, json.loads(done.out)["passed"]) == (0, 1)


def test_a_budget_of_fused_sites_says_which_were_one_node_before(run: Run, folder: Path) -> None:
    model = """<ir_version: 9, opset_import: ["": 18]>
    g (float[2,4] x, float[4] s) => (float[2,4] y) {
      a = LayerNormalization(x, s)  b = LayerNormalization(a, s)  c = Sigmoid(b)  y = Mul(b, c)
    }"""
    onnx.save(onnx.parser.parse_model(model), folder / "norms.onnx")
    text = '[[steps]]\ndo = "fuse"\nverify = false\n[budgets]\nmin_fused = {LayerNorm = 1}\n'
    (folder / "p.toml").write_text(text)
    done = run("run", "p.toml", "norms.onnx", "--junit", "run.xml", "--markdown", "run.md")
    reason = "min_fused.LayerNorm: 0, and is to be at least 1 (already one node: 2 LayerNormalization)"
    assert done.code == 1 and reason in done.out
    assert reason in (folder / "run.xml").read_text()
    assert reason in (folder / "run.md").read_text().replace("\\", "")


def test_models_side_by_side_with_one_that_fails(run: Run, folder: Path) -> None:
    (folder / "p.toml").write_text('[[steps]]\ndo = "fuse"\npatterns = ["LayerNorm"]\nverify = false\n')
    (folder / "other").mkdir()
    shutil.copyfile(folder / "m.onnx", folder / "other" / "m.onnx")
    (folder / "bad.onnx").write_text("no model")
    models = ("m.onnx", "bad.onnx", "other/m.onnx")
    done = run("run", "p.toml", *models, "-o", "out", "--jobs", "2", "--backend", "threading", "--json", "-")
    content = json.loads(done.out)
    assert (done.code, content["passed"], content["failed"]) == (1, 2, 1), content["models"]
    assert [model["model"] for model in content["models"]] == list(models)
    assert "not an ONNX model" in content["models"][1]["error"]
    written = sorted(str(path.relative_to(folder / "out")) for path in (folder / "out").rglob("*.onnx"))
    assert written == ["m.p.onnx", "other/m.p.onnx"]


@pytest.mark.filterwarnings("ignore")
def test_a_scheduler_that_says_nothing_is_one_line(run: Run, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("distributed")
    monkeypatch.setattr("onnxtile.pipeline.run._PATIENCE", 0.5)
    (folder / "p.toml").write_text('[[steps]]\ndo = "unfuse"\n')
    with socket.socket() as mute:
        mute.bind(("127.0.0.1", 0))
        mute.listen()
        address = f"tcp://127.0.0.1:{mute.getsockname()[1]}"
        done = run("run", "p.toml", "m.onnx", "--backend", "dask", "--scheduler", address)
    done.require_error(f"error: no dask scheduler answers at {address}: nothing came in 0.5 s (start one by")
