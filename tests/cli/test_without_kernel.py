"""A model that onnxruntime's CPU cannot run: `plan` plans and checks it, `fuse` names the option without a run."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx

from tests.contributed_models import packed_heads


def test_a_plan_says_that_it_was_not_run(run: Callable[..., Any], tmp_path: Path) -> None:
    onnx.save(packed_heads(), tmp_path / "packed.onnx")
    done = run("plan", "packed.onnx", "--json", "plan.json")
    assert done.code == 0, done.err
    assert json.loads((tmp_path / "plan.json").read_text())["not_run"].endswith("PackedMultiHeadAttention")
    done = run("fuse", "packed.onnx")
    assert (done.code, "--no-verify" in done.err) == (2, True)
    assert run("fuse", "packed.onnx", "--no-verify").code == 0
