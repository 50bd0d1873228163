"""Before and after, as ONNX text, in which metadata do not show.

REGENERATE_GOLDEN=1 writes the after graphs anew: read the difference before you commit it.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import onnx
import onnx_ir as ir
import pytest

from onnxtile.fusion.pattern import from_file

if TYPE_CHECKING:
    from tests.fusion.conftest import Lab

ROOT = Path(__file__).parent.parent.parent
FOLDER = ROOT / "tests" / "golden" / "fuse"
CASES = sorted(path.name.removesuffix(".before.txt") for path in FOLDER.glob("*.before.txt"))


def _without_metadata(model: ir.Model) -> onnx.ModelProto:
    return onnx.parser.parse_model(onnx.printer.to_text(ir.to_proto(model)))


@pytest.mark.parametrize("name", CASES)
def test_the_fused_graph_is_the_golden_one(lab: Lab, name: str) -> None:
    fused = lab.sound(
        onnx.parser.parse_model((FOLDER / f"{name}.before.txt").read_text()),
        from_file(ROOT / "patterns" / "aidge" / f"{name}.toml"),
    )
    assert fused.refusals == [] and sum(fused.counts) > 0
    after = _without_metadata(fused.model)
    file = FOLDER / f"{name}.after.txt"
    if os.environ.get("REGENERATE_GOLDEN") == "1":
        file.write_text(onnx.printer.to_text(after) + "\n")
    lab.require_same_meaning(ir.from_proto(onnx.parser.parse_model(file.read_text())), ir.from_proto(after))


def test_the_cases_are_there() -> None:
    assert {"layer_norm", "gelu", "linear"} <= set(CASES)
