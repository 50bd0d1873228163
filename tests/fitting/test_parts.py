"""Splits, slices and joins of consecutive bytes take none of their own, and flattened pixels stay the rows."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

import onnxtile
from onnxtile.fitting.read_network import read_network
from onnxtile.fitting.regions import Regions
from onnxtile.model.constants import Constants
from onnxtile.model.load import load
from onnxtile.shapes.resolve import resolve
from tests.fitting.networks import model


def network(text: str, **numbers: list[int]) -> Regions:
    """Return the regions of a small network with constants of whole numbers, checked to have the peak that the plan has."""
    made = model(text)
    made.graph.initializer.extend(numpy_helper.from_array(np.asarray(n, np.int64), name) for name, n in numbers.items())
    read = load(made)
    about = Regions(read_network(read, resolve(read), Constants(read)))
    planned = onnxtile.plan(made, order="model", verify=False).plan
    assert max(one.peak for one in about.whole) == planned.peak
    return about


HEAD = "[a] a = Exp(x)\n"


@pytest.mark.parametrize(
    ("cut", "peak"),
    [
        ("[cut] b, c = Split<axis=1>(a, sizes)\n [d] d = Relu(c)\n", 32 * 256),
        ("[cut] b, c = Split<axis=1>(a, sizes)\n [d] d = Relu(c)\n [e] e = Neg(a)\n [f] f = ReduceMax(e)\n", 32 * 256),
        ("[cut] b, c = Split<axis=2>(a, halves)\n [d] d = Relu(c)\n", 64 * 256),
    ],
)
def test_parts_of_consecutive_bytes_are_those_of_their_operand(cut: str, peak: int) -> None:
    text = "g (float[1,32,8,8] x) => (float b2, float d2) {\n" + HEAD + cut
    text += "[b2] b2 = ReduceMax(b)\n [d2] d2 = ReduceMin(d)\n" + ("[g] g = Add(f, b2)\n" if "[f]" in cut else "") + "}"
    about = network(text.replace("=> (", "=> (float g, ") if "[f]" in cut else text, sizes=[8, 24], halves=[4, 4])
    place = next(n for n, kernel in enumerate(about.network.kernels) if kernel.name == "cut")
    assert about.whole[place].peak == peak


def test_a_slice_of_an_operand_that_ends_lets_the_rest_end() -> None:
    text = """
g (float[1,32,8,8] x) => (float y) {
    [a] a = Exp(x)
    [cut] b = Slice(a, first, last, axis)
    [c] c = Relu(b)
    [y] y = ReduceMax(c)
}"""
    about = network(text, first=[8], last=[32], axis=[1])
    assert [one.peak for one in about.whole[:3]] == [32 * 256, 32 * 256, 24 * 256]


def test_pixels_that_are_flattened_stay_the_rows() -> None:
    text = """
g (float[1,4,8,8] x) => (float[1,16,96] y) {
    [a] a = Conv(x, w)
    [b] b = MaxPool<kernel_shape=[2,2], strides=[2,2]>(a)
    [c] c = Reshape(a, s1)
    [d] d = Reshape(b, s2)
    [e] e = Concat<axis=2>(c, d, d)
    [f] f, h = Split<axis=1>(e, sizes)
    [i] i = Sigmoid(f)
    [y] y = Concat<axis=1>(i, h)
}"""
    made = model(text, w=(16, 4, 1, 1))
    numbers = {"s1": [1, 16, 64], "s2": [1, 16, 16], "sizes": [4, 12]}
    made.graph.initializer.extend(numpy_helper.from_array(np.asarray(n, np.int64), name) for name, n in numbers.items())
    onnx.checker.check_model(made, full_check=True)
    read = load(made)
    found = read_network(read, resolve(read), Constants(read))
    assert all(one.axis == 2 for one in found.tensors if len(one.dims) == 3)
    assert [kernel.name for kernel in found.kernels if kernel.links is None] == ["e"]


def test_a_slice_to_the_largest_whole_number_is_cut_into_strips() -> None:
    text = """
g (float[1,4,32,32] x) => (float[1,4,32,32] y) {
    [wide] a = Conv(x, w0)
    [cut] b = Slice(a, first, last, axis)
    [y] y = Conv(b, w1)
}"""
    made = model(text, w0=(32, 4, 1, 1), w1=(4, 24, 1, 1))
    numbers = {"first": 8, "last": np.iinfo(np.int64).max, "axis": 1}
    made.graph.initializer.extend(
        numpy_helper.from_array(np.asarray([n], np.int64), name) for name, n in numbers.items()
    )
    fitted = onnxtile.fit(made, capacity="80KiB", exact=True)
    assert fitted.before.arena >= 128 * 1024
    assert fitted.after.arena <= 80 * 1024
