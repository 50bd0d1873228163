"""Bounds that are computed from the shapes of tensors do not end a run of operators."""

from __future__ import annotations

import onnxtile
from tests.fitting.networks import model

HALVES = """
g (float[1,3,32,32] x) => (float[1,4,32,32] y)
    <int64[1] zero = {0}, int64[1] two = {2}, int64[1] axis = {1}> {
    [wide] a = Conv(x, w0)
    [relu] b = Relu(a)
    sizes = Shape(b)
    channels = Gather(sizes, axis)
    half = Div(channels, two)
    end = Mul(half, two)
    [first] c = Slice(b, zero, half, axis)
    [second] d = Slice(b, half, end, axis)
    [conv] e = Conv<kernel_shape=[3,3], pads=[1,1,1,1]>(d, w1)
    [joined] f = Concat<axis=1>(c, d, e)
    [narrow] y = Conv(f, w2)
}"""


def test_slices_with_bounds_from_shapes_are_cut() -> None:
    """torch exports `chunk` so, as in the blocks of detectors."""
    made = model(HALVES, w0=(32, 3, 1, 1), w1=(16, 16, 3, 3), w2=(4, 48, 1, 1))
    fitted = onnxtile.fit(made, capacity="64KiB", max_extra_macs="0%")
    assert fitted.before.arena > 3 * 64 * 1024
    assert fitted.after.arena <= 64 * 1024
    assert any(step.text.endswith("sizes that are known are constants") for step in fitted.steps)
    assert fitted.verdict is not None and fitted.verdict.equal
