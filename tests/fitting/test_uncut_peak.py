"""The bytes that live at once while nothing is cut: those of the plan in the order of the file, or fewer."""

from __future__ import annotations

import onnx
import pytest

from onnxtile.fitting.live_bytes import uncut_peak
from onnxtile.fitting.regions import Regions
from onnxtile.model.constants import Constants
from onnxtile.model.load import load
from onnxtile.shapes.resolve import resolve
from onnxtile.verbs.flows.fit_drafts import regions_of
from onnxtile.verbs.flows.plan import plan
from tests.fitting.networks import inverted_residuals

_VIEWS = """<ir_version: 10, opset_import: ["": 17]> g (float[4, 64] x) => (float[4, 64] y)
  <int64[2] s = {8, 32}, int64[2] t = {4, 64}> {
    a = Relu(x)  b = Reshape(a, s)  c = Exp(b)  d = Reshape(b, t)  e = Reshape(c, t)  y = Add(d, e)
  }"""
_SIDE = """<ir_version: 10, opset_import: ["": 17]> g (float[4, 64] x) => (float[4, 64] y, float[4, 64] z) {
    a = Relu(x)  b = Exp(a)  c = Add(a, b)  y = Sqrt(c)  z = Relu(b)
  }"""


@pytest.mark.parametrize(
    "model", [inverted_residuals(65), onnx.parser.parse_model(_VIEWS), onnx.parser.parse_model(_SIDE)]
)
def test_it_is_the_peak_of_the_plan_and_no_more_than_that_of_single_kernels(model: onnx.ModelProto) -> None:
    opened = load(model)
    regions: Regions = regions_of(opened, resolve(opened, run=True), Constants(opened), exact=True)
    found = uncut_peak(regions.network)
    assert found == plan(model, order="model", verify=False).plan.peak
    assert found <= max(one.peak for one in regions.whole)


def test_a_view_beside_its_source_is_counted_once() -> None:
    opened = load(onnx.parser.parse_model(_VIEWS))
    regions = regions_of(opened, resolve(opened, run=True), Constants(opened), exact=True)
    assert uncut_peak(regions.network) == 2 * 4 * 64 * 4
