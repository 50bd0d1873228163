"""The shared contract of report formats: found by their ending, the same bytes for the same plan."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from onnxtile import api
from onnxtile.errors import UsageError
from onnxtile.registry import discover
from onnxtile.report.format import Format, format_of

FORMATS = discover("onnxtile.report.formats", Format)


@pytest.fixture(name="plan", scope="module")
def _plan() -> dict[str, Any]:
    model = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["": 17]>
        g (float[4,64] x) => (float[4,8] y) { h = MatMul(x, w)  i = Neg(h)  j = Exp(i)  k = Add(i, j)  y = Relu(k) }"""
    )
    model.graph.initializer.append(numpy_helper.from_array(np.ones((64, 8), np.float32), "w"))
    return api.plan(model).plan.to_dict()


@pytest.mark.parametrize("form", FORMATS.values(), ids=lambda form: form.name)
def test_each_format_is_found_and_gives_the_same_bytes(form: Format, plan: dict[str, Any]) -> None:
    assert form.suffix.startswith(".")
    assert format_of(Path(f"dir.d/my.plan{form.suffix}")) is form
    first = form.render(plan)
    assert first
    assert form.render(plan) == first


def test_no_two_formats_share_an_ending() -> None:
    assert len({form.suffix for form in FORMATS.values()}) == len(FORMATS)


def test_json_says_it_all(plan: dict[str, Any]) -> None:
    assert json.loads(FORMATS["json"].render(plan)) == json.loads(json.dumps(plan))


def test_csv_has_the_columns_of_minimalloc(plan: dict[str, Any]) -> None:
    text = FORMATS["csv"].render(plan).decode()
    rows = list(csv.DictReader(io.StringIO(text)))
    assert text.splitlines()[0] == "id,lower,upper,size,offset"
    owners = {buffer["name"]: buffer for buffer in plan["buffers"] if buffer.get("alias") is None}
    assert {row["id"] for row in rows} == owners.keys()
    for row in rows:
        lower, upper, size, offset = (int(row[key]) for key in ("lower", "upper", "size", "offset"))
        assert 0 <= lower < upper
        assert (size, offset) == (owners[row["id"]]["size"], owners[row["id"]]["offset"])


@pytest.mark.parametrize("name", ["plan", "plan.xyz", "json", "plan.json.gz", ""])
def test_an_unknown_ending_lists_those_there_are(name: str) -> None:
    with pytest.raises(UsageError) as caught:
        format_of(Path(name))
    assert all(form.suffix in (caught.value.hint or "") for form in FORMATS.values())
