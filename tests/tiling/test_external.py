"""Weights in external files are cut as they stream from disk to disk."""

from __future__ import annotations

import io
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from onnx import parser

from onnxtile import api
from onnxtile.model import save as stream
from onnxtile.system.runtime import Session
from onnxtile.tiling.limits import Limits
from tests.tiling.conftest import Case
from tests.tiling.decoder_layer import TOKENS, make

PEAK = """
import sys
from pathlib import Path
from onnxtile import api
from onnxtile.tiling.limits import Limits
source, target, most = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
tiled = api.tile(source, Limits.of(max=most), verify=False)
api.save(tiled.draft, target)
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
    tiled = api.tile(source, Limits.of(max=64))
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


def test_memory_does_not_grow_with_the_layers(tmp_path: Path) -> None:
    few, many = tmp_path / "few", tmp_path / "many"
    few.mkdir()
    many.mkdir()
    # 196 tiles a layer. Held all at once, those of the five layers more would take 16 MB.
    least, tiles = peak(make(few, 256, 704, 1), tmp_path / "few.onnx", 64)
    most, more = peak(make(many, 256, 704, 6), tmp_path / "many.onnx", 64)
    assert (tiles, more) == (196, 6 * 196)
    assert most - least < 8_000_000


@pytest.mark.parametrize("beside", [False, True])
def test_tiles_made_when_they_are_written_are_those_of_the_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, beside: bool
) -> None:
    source = make(tmp_path, 256, 704, 2)
    if beside:
        monkeypatch.setattr(stream, "MOST_BYTES", 2_000_000)
    drafted, whole = tmp_path / "drafted", tmp_path / "whole"
    for folder in (drafted, whole):
        folder.mkdir()
        tiled = api.tile(source, Limits.of(max=64), verify=False)
        assert len(tiled.result.late) == 14
        api.save(tiled.draft if folder is drafted else tiled.model, folder / "m.onnx")
    files = [path.name for path in drafted.iterdir()]
    assert ("m.onnx.data" in files) is beside
    assert all((drafted / name).read_bytes() == (whole / name).read_bytes() for name in files)
    x = np.random.default_rng(1).standard_normal((1, TOKENS, 256)).astype(np.float16)
    expected, got = (Session(path).run({"x": x})["y"] for path in (source, drafted / "m.onnx"))
    np.testing.assert_allclose(got, expected, rtol=0, atol=4e-3 * float(np.abs(expected).max()))


@pytest.mark.parametrize(
    "case",
    [
        Case(m=9, k=20, n=12, constants="b", alpha=0.5, beta=2.0, bias=(12,), op="Gemm"),
        Case(m=9, k=20, n=12, constants="bc", beta=2.0, bias=(12,), op="Gemm"),
        Case(m=9, k=20, n=12, constants="bc", bias=(1, 12), trans_b=True, op="Gemm"),
        Case(m=9, k=20, n=12, constants="ab", op="MatMul"),
        Case(m=9, k=20, n=12, op="MatMul"),
    ],
)
def test_a_draft_is_written_as_its_model(case: Case) -> None:
    drafted, whole = io.BytesIO(), io.BytesIO()
    stream.write_model(api.tile(case.model(), Limits.of(max=4), verify=False).draft, drafted)
    tiled = api.tile(case.model(), Limits.of(max=4), verify=False)
    stream.write_model(tiled.model, whole)
    assert drafted.getvalue() == whole.getvalue()
    assert tiled.nodes_after == tiled.model.graph.num_nodes() == sum(site.nodes for site in tiled.result.tiled)
    got = Session(drafted.getvalue()).run(case.feeds())["y"]
    np.testing.assert_allclose(got, case.expected(), rtol=1e-4, atol=1e-4)


def test_a_product_that_waits_reads_what_took_the_place_of_its_operand() -> None:
    # The first product reads the result of a node, so its tiles are made at once; those of the second, which reads it, wait.
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
    assert len(first.result.late) == 1
    second = api.tile(first.model, Limits.of(max=2), verify=False)
    written = io.BytesIO()
    stream.write_model(second.draft, written)
    feeds = {"x": np.arange(16, dtype=np.float32).reshape(2, 8)}
    expected, got = (Session(one).run(feeds)["y"] for one in (model.SerializeToString(), written.getvalue()))
    np.testing.assert_array_equal(got, expected)


@pytest.mark.slow
def test_a_decoder_layer_of_llama_7b_takes_less_than_a_gigabyte(tmp_path: Path) -> None:
    resident, tiles = peak(make(tmp_path, 4096, 11008), tmp_path / "tiled.onnx", 64)
    assert tiles == 4 * 64 * 64 + 3 * 64 * 172
    assert resident < 1_000_000_000
    assert (tmp_path / "tiled.onnx").stat().st_size > 2 * (4 * 4096**2 + 3 * 4096 * 11008)
