"""What the whole library fuses comes back, and is fused again to the same bytes: of each model of the zoo, and of models with bodies."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import onnx
import pytest

from onnxtile import api
from onnxtile.model.save import to_bytes
from tests.conftest import ZOO

if TYPE_CHECKING:
    from tests.fusion.conftest import Lab

QUICK = {"bert_ts14_sim", "clip_text_dy20", "t5_encoder_ts14"}
MODELS = sorted({path.stem for path in ZOO.glob("*.onnx")} | QUICK)


def _require_undone(lab: Lab, path: Path) -> None:
    fused = lab.fuse(path, verify=False)
    restored = lab.require_restored(fused)
    assert sum(fused.counts) > 0
    assert to_bytes(api.fuse(restored, verify=False).model) == to_bytes(fused.model)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in QUICK else pytest.mark.slow) for name in MODELS]
)
def test_each_model_of_the_zoo_comes_back(lab: Lab, zoo: Callable[[str], Path], name: str) -> None:
    _require_undone(lab, zoo(name))


def test_a_model_with_bodies_comes_back(lab: Lab, silero: Callable[[str], Path]) -> None:
    _require_undone(lab, silero("silero_vad"))


@pytest.mark.parametrize("raw", [True, False])
def test_a_constant_comes_back_in_the_form_it_had(lab: Lab, raw: bool) -> None:
    """As bytes, or in the field of its type; from a file as well as from memory."""
    source = lab.text("g (float[2] x) => (float[2] y) <float c = {3.0}> { h = Mul(x, c)  y = Exp(h) }")
    if raw:
        source.graph.initializer[0].CopyFrom(
            onnx.numpy_helper.from_array(onnx.numpy_helper.to_array(source.graph.initializer[0]), "c")
        )
    fused = api.fuse(source, ["Mul->Exp"], verify=False)
    (restored,) = onnx.ModelProto.FromString(to_bytes(api.unfuse(fused.model).model)).graph.initializer
    assert restored.HasField("raw_data") == raw
    assert list(restored.float_data) == ([] if raw else [3.0])
