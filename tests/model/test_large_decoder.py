"""A decoder of the shape of Llama-7B: 27 GB of weights, of which no verb that needs the graph alone reads any."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from onnxtile import api
from onnxtile.model import save as stream
from onnxtile.model.feeds import sample_feeds
from onnxtile.model.load import load
from onnxtile.system.runtime import Session
from tests.bench.large_decoder import DecoderSize, make

MOST_MEMORY, MOST_SECONDS = 1_000_000_000, 60
"""Bytes resident, and seconds of the processor."""


@pytest.fixture(scope="module")
def decoder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    path = tmp_path_factory.mktemp("decoder") / "decoder.onnx"
    make(path, DecoderSize())
    data = path.with_name("decoder.onnx.data")
    assert data.stat().st_size > 26e9
    yield path
    data.unlink()


@pytest.mark.slow
@pytest.mark.parametrize(
    "line",
    ["inspect", "fuse --no-verify", "fuse --lower ort --no-verify", "plan --no-verify", "match MatMul->Reshape"],
)
def test_the_graph_is_enough(decoder: Path, line: str) -> None:
    verb, *words = line.split()
    with (decoder.parent / "printed.txt").open("w+") as printed:
        command = [sys.executable, "-m", "onnxtile", verb, str(decoder), *words]
        process = subprocess.Popen(command, stdout=printed, stderr=printed)
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        printed.seek(0)
        assert process.returncode == 0, printed.read()
    assert used.ru_maxrss * 1024 < MOST_MEMORY
    assert used.ru_utime + used.ru_stime < MOST_SECONDS


def test_tiles_of_a_small_decoder_load_from_one_file_and_from_two(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "decoder.onnx"
    make(path, DecoderSize(layers=2, hidden=64, heads=4, inner=176, words=100, cached=7))
    data = path.with_name("decoder.onnx.data")
    np.random.default_rng(0).normal(0, 0.1, data.stat().st_size // 4).astype(np.float32).tofile(data)
    feeds = sample_feeds(load(path), lambda value: None if value.shape is None else value.shape.numpy())
    expected = Session(path).run(feeds)
    for most in (stream.MOST_BYTES, 400_000):
        monkeypatch.setattr(stream, "MOST_BYTES", most)
        out = tmp_path / f"tiled{most}.onnx"
        tiled = api.tile(path, max=32, verify=False)
        tiled.save(out)
        assert tiled.result.matmuls > 100
        found = Session(out).run(feeds)
        for name, value in expected.items():
            np.testing.assert_allclose(found[name], value, rtol=1e-4, atol=1e-5)
    assert (tmp_path / "tiled400000.onnx.data").stat().st_size > 200_000
