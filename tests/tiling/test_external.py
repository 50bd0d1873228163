"""Weights in external files are cut as they stream from disk to disk."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest
from onnx import parser

from onnxtile import api
from onnxtile.system.runtime import Session
from onnxtile.tiling.limits import Limits
from tests.tiling.decoder_layer import TOKENS, make

PEAK = """
import sys
from pathlib import Path
from onnxtile.system.registry import defer_libraries
defer_libraries()
from onnxtile import api
from onnxtile.tiling.limits import Limits
source, target, most = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
tiled = api.tile(source, Limits.of(max=most), verify=False)
api.save(tiled.model, target)
status = Path("/proc/self/status").read_text()
print(next(line.split()[1] for line in status.splitlines() if line.startswith("VmHWM")), tiled.result.matmuls)
"""


def peak(source: Path, target: Path, most: int) -> tuple[int, int]:
    """Tile and save in a process of its own; return the most bytes that were resident, mapped pages included, and the tiles."""
    run = subprocess.run(
        [sys.executable, "-c", PEAK, source, target, str(most)], capture_output=True, text=True, check=True
    )
    kibibytes, tiles = map(int, run.stdout.split())
    return kibibytes * 1024, tiles


def test_a_layer_tiled_from_its_file_computes_the_same(tmp_path: Path) -> None:
    source = make(tmp_path, 256, 704)
    tiled = api.tile(source, Limits.of(max=128))
    assert tiled.verdict is not None and tiled.verdict.equal
    api.save(tiled.model, tmp_path / "tiled.onnx")
    x = np.random.default_rng(1).standard_normal((1, TOKENS, 256)).astype(np.float16)
    expected, got = (Session(path).run({"x": x})["y"] for path in (source, tmp_path / "tiled.onnx"))
    np.testing.assert_allclose(got, expected, rtol=0, atol=4e-3 * float(np.abs(expected).max()))


def test_the_weights_of_a_layer_are_never_all_in_memory(tmp_path: Path) -> None:
    small, large = tmp_path / "small", tmp_path / "large"
    small.mkdir()
    large.mkdir()
    # Both have as many tiles; the weights of one take 2 MB, those of the other 101 MB, the largest of them 23 MB.
    least, tiles = peak(make(small, 256, 704), tmp_path / "small.onnx", 64)
    most, same = peak(make(large, 2048, 5632), tmp_path / "large.onnx", 512)
    assert tiles == same
    assert most - least < 60_000_000


def test_a_model_of_tiles_is_tiled_again() -> None:
    w, v = (", ".join(str(i % 5) for i in range(size)) for size in (64, 32))
    model = parser.parse_model(f"""
        <ir_version: 10, opset_import: ["" : 21]>
        net (float[2,8] x) => (float[2,4] y) <float[8,4] v = {{{v}}}> {{
            w = Constant <value: tensor = float[8,8] {{{w}}}> ()
            h = MatMul(x, w)
            y = MatMul(h, v)
        }}
    """)
    first = api.tile(model, Limits.of(max=4), verify=False)
    assert [site.node for site in first.result.tiled] == ["h", "y"]
    second = api.tile(first.model, Limits.of(max=2), verify=False)
    feeds = {"x": np.arange(16, dtype=np.float32).reshape(2, 8)}
    expected, got = (Session(one.SerializeToString()).run(feeds)["y"] for one in (model, ir.to_proto(second.model)))
    np.testing.assert_array_equal(got, expected)


@pytest.mark.slow
def test_a_decoder_layer_of_llama_7b_takes_less_than_a_gigabyte(tmp_path: Path) -> None:
    resident, tiles = peak(make(tmp_path, 4096, 11008), tmp_path / "tiled.onnx", 64)
    assert tiles == 4 * 64 * 64 + 3 * 64 * 172
    assert resident < 1_000_000_000
    assert (tmp_path / "tiled.onnx").stat().st_size > 2 * (4 * 4096**2 + 3 * 4096 * 11008)
