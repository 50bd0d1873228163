"""The action for GitHub: its last step runs the pipeline, and fails with it."""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from onnxtile.system.registry import data_folder

ROOT = Path(__file__).parent.parent


@pytest.fixture(name="action")
def _action() -> Any:
    yaml = pytest.importorskip("yaml", reason="PyYAML comes with mkdocs")
    return yaml.safe_load((ROOT / "action.yml").read_text())


def test_every_input_is_used_and_every_variable_is_an_input(action: Any) -> None:
    step = action["runs"]["steps"][-1]
    assert {value for value in step["env"].values()} == {f"${{{{ inputs.{name} }}}}" for name in action["inputs"]}
    assert all(f"${name}" in step["run"] for name in step["env"])
    assert all(name == "pipeline" or "default" in one for name, one in action["inputs"].items())


@pytest.mark.parametrize(("budget", "code"), [("1MiB", 0), ("1KiB", 1)])
def test_the_step_runs_the_pipeline(action: Any, tmp_path: Path, budget: str, code: int) -> None:
    (tmp_path / "onnxtile").write_text(f'#!/bin/sh\nexec {sys.executable} -m onnxtile "$@"\n')
    (tmp_path / "onnxtile").chmod(0o755)
    (tmp_path / "nets").mkdir()
    shutil.copyfile(data_folder("models") / "transformer.onnx", tmp_path / "nets" / "m.onnx")
    (tmp_path / "p.toml").write_text(f'[[steps]]\ndo = "plan"\nverify = false\n[budgets]\nmax_arena = "{budget}"\n')
    inputs = {name: str(one.get("default", "")) for name, one in action["inputs"].items()}
    inputs |= {"pipeline": "p.toml", "models": "nets/*.onnx", "output": "out"}
    step = action["runs"]["steps"][-1]
    given = {name: inputs[text.removeprefix("${{ inputs.").removesuffix(" }}")] for name, text in step["env"].items()}
    environment = {**os.environ, **given, "PATH": f"{tmp_path}:/usr/bin:/bin", "PYTHONPATH": str(ROOT)}
    environment["GITHUB_STEP_SUMMARY"] = str(tmp_path / "step.md")
    done = subprocess.run(
        ["bash", "-e", "-c", step["run"]], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == code, done.stderr
    assert (tmp_path / "step.md").read_text().startswith(f"## p: {1 - code} passed, {code} failed")
    assert (tmp_path / "onnxtile-junit.xml").exists() and (tmp_path / "onnxtile-summary.json").exists()
    assert (tmp_path / "out" / "m.p.onnx").exists() == (code == 0)
