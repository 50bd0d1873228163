"""A decoder of the shape of Llama-7B: 27 GB of weights, of which no verb that needs the graph alone reads any."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

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
