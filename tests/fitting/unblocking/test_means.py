"""The mean of a sum comes from the means of its summands, and equals it."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import numpy_helper

import onnxtile
from onnxtile.fitting.editing import ModelEdit
from onnxtile.fitting.rewrites.means import mean_before_sum
from onnxtile.model.load import load
from onnxtile.shapes.resolve import resolve
from tests.fitting.networks import model, run

ADDED = "[sum] s = Add(a, b)\n [total] u = Sum(s, a)\n [mean] m = GlobalAveragePool(u)\n"
SELECTIVE = """
    [one] ua = Unsqueeze(a, first)
    [other] ub = Unsqueeze(b, first)
    [both] c = Concat<axis=1>(ua, ub)
    [sum] s = ReduceSum<keepdims=0>(c, first)
    [mean] m = ReduceMean<axes=[2,3], keepdims=1>(s)
"""
SPLIT = """
    [both] c = Concat<axis=1>(a, b)
    [radix] r = Reshape(c, groups)
    [sum] s = ReduceSum<keepdims=0>(r, first)
    [flat] f = ReduceMean<axes=[-1,-2], keepdims=0>(s)
    [mean] m = Reshape(f, pixel)
"""


def gated(mean: str) -> onnx.ModelProto:
    """Return two branches that are scaled by the mean of both."""
    text = f"""
g (float[1,4,24,16] x) => (float[1,4,24,16] y) {{
    [left] a = Conv(x, w0)
    [right] b = Conv(x, w1)
    {mean}
    [gate] g = Sigmoid(m)
    [scaled] p = Mul(a, g)
    [narrow0] p0 = Conv(p, w2)
    [narrow1] p1 = Conv(b, w2)
    [add] y = Add(p0, p1)
}}"""
    made = model(text, w0=(8, 4, 1, 1), w1=(8, 4, 1, 1), w2=(4, 8, 1, 1))
    numbers = {"first": [1], "groups": [1, 2, 8, 24, 16], "pixel": [1, 8, 1, 1]}
    made.graph.initializer.extend(numpy_helper.from_array(np.asarray(n, np.int64), name) for name, n in numbers.items())
    return made


@pytest.mark.parametrize("mean", [ADDED, SELECTIVE, SPLIT])
def test_a_mean_of_sums_is_the_sum_of_the_means(mean: str) -> None:
    made = gated(mean)
    x = np.random.default_rng(1).standard_normal((1, 4, 24, 16)).astype(np.float32)
    read = load(made)
    edit = ModelEdit(read, resolve(read))
    assert len(mean_before_sum(edit)) == 1
    edit.drop_unread()
    sums = [node for node in read.graph if node.name in {"sum", "total"}]
    assert not sums
    assert [len(node.inputs) for node in read.graph if node.op_type == "GlobalAveragePool"] == [1, 1]
    np.testing.assert_allclose(run(ir.to_proto(read), x), run(made, x), atol=1e-5)


@pytest.mark.parametrize(
    "mean",
    [
        "[sum] s = Add(a, b)\n [mean] m = GlobalAveragePool(s)\n [other] b2 = Mul(s, m)\n",
        "[sum] s = Mul(a, b)\n [mean] m = GlobalAveragePool(s)\n",
        "[mean] m = GlobalAveragePool(a)\n",
        "[rows] s = Concat<axis=2>(a, b)\n [mean] m = GlobalAveragePool(s)\n",
    ],
)
def test_a_mean_stays_where_its_operand_is_no_sum_or_is_read_elsewhere(mean: str) -> None:
    read = load(gated(mean))
    assert not mean_before_sum(ModelEdit(read, resolve(read)))


def test_selective_kernels_fit_without_the_sum_of_their_branches() -> None:
    fitted = onnxtile.fit(gated(SELECTIVE), capacity="26KiB", max_extra_macs="0%")
    assert ("mean",) in [step.nodes for step in fitted.steps if step.kind == "rewrite"]
    assert fitted.after.arena <= 26 * 1024 < fitted.before.arena
    assert fitted.verdict is not None and fitted.verdict.equal
