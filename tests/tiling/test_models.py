"""Whole transformers: the demo model, and files as exporters wrote them where they are at hand."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import onnx
import pytest

from onnxtile import api
from onnxtile.model.binding import bind
from onnxtile.model.load import load
from onnxtile.model.save import to_bytes
from onnxtile.shapes.resolve import resolve
from onnxtile.system.runtime import Array, Feed, Session
from onnxtile.tiling.limits import Limits

if TYPE_CHECKING:
    from tests.tiling.conftest import Bench, Tiled

ROOT = Path(__file__).parent.parent.parent
DEMO = ROOT / "models" / "transformer.onnx"
ZOO = ROOT.parent / "shared" / "zoo"


def feed(wanted: Feed, sizes: dict[str, int]) -> Array:
    """Return random numbers for an input: ids of few words, a mask of ones, or pixels."""
    random = np.random.default_rng(0)
    shape = [sizes[dim] if isinstance(dim, str) else dim or 1 for dim in wanted.shape]
    if "mask" in wanted.name:
        return np.ones(shape, np.int64)
    if "int64" in wanted.type:
        return random.integers(0, 100, shape)
    return random.standard_normal(shape).astype(np.float32)


def require_equal(source: Path, tiled: Tiled, sizes: dict[str, int]) -> None:
    """Assert that the tiled model computes what its source does, to the rounding of float32, and each tiled node too."""
    session = Session(source)
    feeds = {wanted.name: feed(wanted, sizes) for wanted in session.inputs}
    expected, got = session.run(feeds), tiled.run(feeds)
    assert list(expected) == list(got)
    for name, array in expected.items():
        np.testing.assert_allclose(got[name], array, rtol=1e-4, atol=1e-4 * float(np.abs(array).max()))
    assert all(verdict.passed for verdict in tiled.verdicts(runs=2)), tiled.verdicts()


def products_above(tiled: Tiled, bound: int) -> list[str]:
    """Return the MatMuls and Gemms with a side above `bound`, by shapes inferred from the bytes that would be saved."""
    fresh = load(onnx.load_from_string(to_bytes(tiled.model)))
    for node in fresh.graph.all_nodes():
        for value in node.outputs:
            if not value.is_graph_output():
                value.shape = None
    shapes = resolve(fresh)
    above = []
    for node in fresh.graph.all_nodes():
        if node.op_type not in {"MatMul", "Gemm"}:
            continue
        sides = [shapes.sizes(value) for value in node.inputs[:2] if value is not None]
        if any(side is None or max(side[-2:]) > bound for side in sides):
            above.append(f"{node.name}: {sides}")
    return above


def test_every_product_of_the_demo_model_fits_a_unit_of_64(bench: Bench) -> None:
    tiled = bench.tile(load(DEMO), Limits.of(max=64))
    assert len(tiled.result.tiled) == 12 * 6 + 1
    assert [skip.node for skip in tiled.result.skipped] == ["embedding/patch/conv"], "nobody asked to cut it"
    assert tiled.result.matmuls == 12 * (16 + 4 + 4 + 8 + 12 + 12) + 4
    assert not products_above(tiled, 64)
    require_equal(DEMO, tiled, {})


@pytest.mark.parametrize(
    ("name", "sizes", "tiled_nodes"),
    [
        ("whisper_encoder_dy20", {}, 32),
        ("swin_ts14", {}, 59),
        ("gpt2_dy20dyn", {"batch": 2, "seq": 40}, 73),
        ("bert_ts14dyn", {"batch": 2, "seq": 40}, 96),
    ],
)
def test_exported_models_at_32(bench: Bench, name: str, sizes: dict[str, int], tiled_nodes: int) -> None:
    file = ZOO / f"{name}.onnx"
    if not file.exists():
        pytest.skip(f"{file} is not on this machine")
    source = load(file)
    bind(source, sizes, {})
    tiled = bench.tile(source, Limits.of(max=32))
    assert len(tiled.result.tiled) == tiled_nodes
    reasons = [skip.reason for skip in tiled.result.skipped]
    assert all("within the limits" in reason or "--conv" in reason for reason in reasons), reasons
    require_equal(file, tiled, sizes)


@pytest.mark.parametrize("name", ["bert_dy20dyn", "llama_ts14dyn_sim"])
def test_exported_models_keep_the_batch_and_the_sequence_that_no_limit_holds(bench: Bench, name: str) -> None:
    file = ZOO / f"{name}.onnx"
    if not file.exists():
        pytest.skip(f"{file} is not on this machine")
    tiled = bench.tile(load(file), Limits(k=32, n=32))
    assert tiled.result.tiled
    assert {skip.reason.split(": ")[-1] for skip in tiled.result.skipped} == {"bind it with --dim seq=N"}
    for sizes in ({"batch": 1, "seq": 7}, {"batch": 3, "seq": 33}):
        require_equal(file, tiled, sizes)


def test_meta_ops_are_tiled_inside(bench: Bench) -> None:
    fused = api.fuse(DEMO, ["Linear", "ScaledDotProductAttention", "MultiHeadAttention"], verify=False).model
    tiled = bench.tile(fused, Limits.of(max=64))
    # Linear is called with four sizes, and each call of one size is cut in the same function.
    names = {site.node.split("/")[0] for site in tiled.result.tiled}
    assert {name.partition(".")[0] for name in names} <= {"Linear", "ScaledDotProductAttention", "MultiHeadAttention"}
    assert len([name for name in names if name.startswith("Linear")]) > 1
    reasons = {skip.reason for skip in tiled.result.skipped}
    assert all("within the limits" in reason or "--conv" in reason for reason in reasons), reasons
    require_equal(DEMO, tiled, {})
