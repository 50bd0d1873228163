"""TensorFlow Lite Micro's offline plan: the words as its documentation has them, read back as its allocator reads them."""

from __future__ import annotations

import json
import struct

import pytest

from onnxtile.report.format import Format
from onnxtile.report.formats import to_tflm
from onnxtile.system.errors import UsageError
from tests.report.conftest import Plan, bare, row


def test_every_tensor_has_its_offset_or_none(plan: Plan) -> None:
    content = json.loads(to_tflm.JSON.render(plan))
    version, subgraphs, count, *offsets = content["buffer"]
    assert (content["name"], version, subgraphs, count) == ("OfflineMemoryAllocation", 1, 1, len(content["tensors"]))
    found = dict(zip(content["tensors"], offsets, strict=True))
    planned = {buffer["name"]: buffer["offset"] for buffer in plan["buffers"]}
    without = {entry["name"] for key in ("outside", "constants") for entry in plan[key]}
    assert found == planned | dict.fromkeys(without, -1)
    assert content["arena_size"] == plan["arenas"][0]["size"]


def test_a_workspace_is_no_tensor() -> None:
    plan = bare([row("x", 0, 64, 0, 1), row("scratch", 64, 64, 1, 1, kind="workspace"), row("y", 128, 64, 1, 2)])
    content = json.loads(to_tflm.JSON.render(plan))
    assert content["tensors"] == ["x", "y"]
    assert content["buffer"] == [1, 1, 2, 0, 128]


def test_the_bytes_are_little_endian_words(plan: Plan) -> None:
    data = to_tflm.BYTES.render(plan)
    words = json.loads(to_tflm.JSON.render(plan))["buffer"]
    assert list(struct.unpack(f"<{len(words)}i", data)) == words


@pytest.mark.parametrize("form", [to_tflm.BYTES, to_tflm.JSON], ids=lambda form: form.name)
def test_an_offset_that_does_not_fit_is_refused(form: Format) -> None:
    assert form.render(bare([row("fits", 2**31 - 1, 1, 0, 0)]))
    with pytest.raises(UsageError, match="below 2 GiB"):
        form.render(bare([row("too far", 2**31, 1, 0, 0)]))
