"""A wide tensor that its own means scale is made twice, and never exists as a whole."""

from __future__ import annotations

import onnx
import pytest

import onnxtile
from onnxtile.fitting.editing import ModelEdit
from onnxtile.fitting.rewrites.means import second_passes
from onnxtile.model.load import load
from onnxtile.shapes.resolve import resolve
from tests.fitting.networks import model

EXCITATION = """
    [mean] m = GlobalAveragePool(b)
    [less] n = Conv(m, w2)
    [gate] o = Sigmoid(n)
    [gated] p = Mul(b, o)
"""
RESPONSE = """
    [mean] m = ReduceL2<axes=[2,3]>(b)
    [over] n = ReduceMean<axes=[1]>(m)
    [gate] o = Div(m, n)
    [gated] p = Mul(b, o)
"""


def gated(gate: str) -> onnx.ModelProto:
    """Return a wide tensor between two narrow ones, which a gate made of its means scales."""
    text = f"""
g (float[1,4,32,32] x) => (float[1,4,32,32] y) {{
    [stem] s = Conv<kernel_shape=[3,3], pads=[1,1,1,1]>(x, w0)
    [wide] a = Conv(s, w1)
    [relu] b = Relu(a)
    {gate}
    [narrow] q = Conv(p, w3)
    [add] y = Add(q, s)
}}"""
    weights = {"w0": (4, 4, 3, 3), "w1": (32, 4, 1, 1), "w3": (4, 32, 1, 1)}
    return model(text, **(weights | ({"w2": (32, 32, 1, 1)} if "w2" in gate else {})))


@pytest.mark.parametrize("gate", [EXCITATION, RESPONSE])
def test_a_tensor_that_its_means_scale_is_made_twice(gate: str) -> None:
    made = gated(gate)
    fitted = onnxtile.fit(made, capacity="80KiB", max_extra_macs="40%")
    assert [step.nodes for step in fitted.steps if step.kind == "rewrite"] == [("mean",)]
    assert fitted.before.arena > 150 * 1024
    assert fitted.after.arena <= 80 * 1024
    assert 1.05 * fitted.before.macs < fitted.after.macs <= 1.4 * fitted.before.macs
    assert fitted.verdict is not None and fitted.verdict.equal


def test_nothing_is_made_twice_beyond_the_budget_or_where_it_must_be_exact() -> None:
    for options in ({"max_extra_macs": "20%"}, {"max_extra_macs": "40%", "exact": True}):
        with pytest.raises(onnxtile.Infeasible):
            onnxtile.fit(gated(EXCITATION), capacity="80KiB", **options)


def test_nothing_is_made_twice_where_the_whole_fits() -> None:
    fitted = onnxtile.fit(gated(EXCITATION), capacity="200KiB", max_extra_macs="40%")
    assert "rewrite" not in {step.kind for step in fitted.steps}


@pytest.mark.parametrize(
    "tail",
    [
        "[early] t = Neg(b)\n [mean] m = GlobalAveragePool(b)\n [gated] p = Mul(b, m)\n [other] u = Add(p, t)\n",
        "[mean] u = GlobalAveragePool(b)\n",
    ],
)
def test_a_tensor_that_lives_or_ends_anyway_is_made_once(tail: str) -> None:
    text = f"""
g (float[1,4,32,32] x) => (float[1,4,N,M] y) {{
    [wide] a = Conv(x, w1)
    [relu] b = Relu(a)
    {tail}
    [narrow] y = Conv(u, w3)
}}"""
    read = load(model(text, w1=(32, 4, 1, 1), w3=(4, 32, 1, 1)))
    edit = ModelEdit(read, resolve(read))
    assert not list(second_passes(edit, set(read.graph)))
