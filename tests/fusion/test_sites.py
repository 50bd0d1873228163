"""The five first queries find their sites on real models, and what they make of them is sound."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import onnx
import onnx_ir as ir
import onnxruntime
import pytest

from onnxtile.fusion.pattern import from_file
from onnxtile.model import keys
from onnxtile.model.save import to_bytes
from onnxtile.verification.trials import run_original

if TYPE_CHECKING:
    from tests.fusion.conftest import Fused, Lab


@pytest.fixture(name="dino", scope="module")
def _dino(lab: Lab, zoo: Callable[[str], Path]) -> Fused:
    return lab.fuse(zoo("dinov2div_ts14_sim0436"), *lab.five)


def test_dinov2_has_the_sites_that_aidge_finds(dino: Fused) -> None:
    assert dino.counts == [36, 25, 12, 12, 12]
    assert dino.refusals == []
    assert dino.original.graph.num_nodes() == 614


def test_equal_bodies_share_one_function(dino: Fused) -> None:
    made = [function for function in dino.model.functions.values() if keys.META_OP in function.metadata_props]
    assert sorted(function.name for function in made) == sorted(
        ["Linear"] * 1 + ["LayerNorm", "ScaledDotProductAttention", "MultiHeadAttention", "GeLU"]
    )
    assert {function.overload for function in made} == {""}


def test_the_checker_passes_also_with_strict_shape_inference(dino: Fused) -> None:
    proto = onnx.ModelProto.FromString(to_bytes(dino.model))
    onnx.checker.check_model(proto, full_check=True)
    onnx.shape_inference.infer_shapes(proto, strict_mode=True)


def test_onnxruntime_computes_the_same_bits(lab: Lab, dino: Fused) -> None:
    lab.require_same_bits(dino.original, dino.model)


@pytest.mark.parametrize("level", ["ORT_DISABLE_ALL", "ORT_ENABLE_ALL"])
def test_a_transformer_fuses_whole(lab: Lab, transformer: Path, level: str) -> None:
    fused = lab.fuse(transformer, *lab.five)
    assert fused.counts[1:] == [5, 2, 2, 2]
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = getattr(onnxruntime.GraphOptimizationLevel, level)
    trials, _ = run_original(fused.original)
    a, b = (onnxruntime.InferenceSession(to_bytes(m), options) for m in (fused.original, fused.model))
    for trial in trials:
        for expected, got in zip(a.run(None, trial.feeds), b.run(None, trial.feeds), strict=True):
            assert (expected == got).all()


def test_names_of_inputs_and_outputs_stay(dino: Fused) -> None:
    for one, other in (
        (dino.original.graph.inputs, dino.model.graph.inputs),
        (dino.original.graph.outputs, dino.model.graph.outputs),
    ):
        assert [(v.name, v.dtype, v.shape) for v in one] == [(v.name, v.dtype, v.shape) for v in other]


def test_unfuse_gives_the_model_back(lab: Lab, dino: Fused) -> None:
    lab.require_restored(dino)


# Before and after, as ONNX text, in which metadata do not show.


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
