"""AlexNet as it comes with onnx: its three large layers at the size of a 64 × 64 unit."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import onnx
import pytest

from onnxtile.system.runtime import Array, Session
from onnxtile.tiling.limits import Limits
from tests.bench.alexnet import make

if TYPE_CHECKING:
    from tests.tiling.conftest import Bench, Tiled

FILE = Path(onnx.__file__).parent / "backend/test/data/light/light_bvlc_alexnet.onnx"


@pytest.fixture(scope="module")
def tiled(bench: Bench) -> Tiled:
    """Return AlexNet at 64; that nothing is above 64 is asserted by the bench."""
    return bench.tile(onnx.load(FILE), Limits.of(max=64))


def test_its_layers_become_so_many_matmuls(tiled: Tiled) -> None:
    assert [site["matmuls"] for site in tiled.result.to_dict()["tiled"]] == [9216, 4096, 1024]
    assert tiled.count("MatMul") == 9216 + 4096 + 1024 and tiled.count("Gemm") == 0
    assert [skip.node for skip in tiled.result.skipped] == ["n0", "n4", "n8", "n10", "n12"]
    assert all("--conv" in skip.reason for skip in tiled.result.skipped), "its convolutions, which nobody asked to cut"
    blocks = 64 + 64 + 16
    assert tiled.count("Add") == 9216 + 4096 + 1024 - blocks + 3, "a chain for each block, and the bias of each layer"
    assert len(tiled.nodes) == 28_571


def test_the_weights_that_operators_made_are_folded_and_gone(tiled: Tiled) -> None:
    left = {node.outputs[0].name for node in tiled.nodes if node.op_type == "ConstantOfShape"}
    assert {"fc6_w_0", "fc7_w_0", "fc8_w_0"}.isdisjoint(left) and "conv1_w_0" in left


@pytest.mark.slow
def test_its_outputs_are_the_same(tiled: Tiled) -> None:
    image = np.random.default_rng(0).standard_normal((1, 3, 224, 224)).astype(np.float32)
    expected = Session(FILE.read_bytes()).run({"data_0": image})["prob_1"]
    np.testing.assert_allclose(tiled.run({"data_0": image})["prob_1"], expected, rtol=1e-4, atol=1e-7)


def test_a_layer_of_its_shape_with_weights_that_differ(bench: Bench) -> None:
    # All of AlexNet's weights are 0.02 in that file, which would hide two blocks in each other's place.
    case = bench.case(m=1, k=4096, n=1000, trans_b=True, bias=(1000,), constants="bc")
    tiled = bench.judge(case, Limits.of(max=64))
    assert tiled.result.matmuls == 1024
    (verdict,) = tiled.verdicts()
    assert verdict.passed, verdict
    image: Array = case.feeds()["a"]
    expected = Session(case.model().SerializeToString()).run({"a": image})["y"]
    np.testing.assert_allclose(tiled.run({"a": image})["y"], expected, rtol=0, atol=1e-4 * np.abs(expected).max())


@pytest.mark.slow
def test_each_of_its_layers_passes_its_trials_with_weights_of_its_own(bench: Bench, tmp_path: Path) -> None:
    make(tmp_path / "alexnet.onnx")
    tiled = bench.tile(onnx.load(tmp_path / "alexnet.onnx"), Limits.of(max=64))
    verdicts = tiled.verdicts(runs=100)
    assert [verdict.node for verdict in verdicts] == [site.node for site in tiled.result.tiled] == ["n16", "n19", "n22"]
    assert all(verdict.passed and verdict.runs == 100 for verdict in verdicts), verdicts
