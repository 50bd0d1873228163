"""Attention blocks as both exporters of PyTorch write them: YOLO's PSA block, and that of the VAE of diffusion models."""

from collections.abc import Callable
from pathlib import Path

import onnx_ir as ir
import pytest

from onnxtile import api

FOLDER = Path(__file__).parents[1] / "golden" / "exports"
WANTED = {
    "psa": {"ScaledDotProductAttention": 1},
    "vae": {"ScaledDotProductAttention": 1, "GroupNorm": 1},
    "vae_linear": {"ScaledDotProductAttention": 1, "MultiHeadAttention": 1, "GroupNorm": 1, "Linear": 4},
}


@pytest.mark.parametrize("exporter", ["torchscript", "dynamo"])
@pytest.mark.parametrize("block", WANTED)
def test_each_block_has_its_attention(block: str, exporter: str, found: Callable[[ir.Model], dict[str, int]]) -> None:
    result = api.fuse(FOLDER / f"{block}_{exporter}.onnx")
    assert result.verdict is not None and result.verdict.equal
    assert all(site.equal for site in result.sites)
    assert found(result.model)["attention"] == 1
    assert {one.name: len(one.calls) for one in result.patterns if one.calls} == WANTED[block]
