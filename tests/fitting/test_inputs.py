"""fit --io: inputs inside the arena count, and their rows die one after the other."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as some

import onnxtile
from onnxtile.fitting.live_bytes import ALIGNMENT
from onnxtile.fitting.network import FitTensor
from onnxtile.fitting.read_network import read_network
from onnxtile.model.constants import Constants
from onnxtile.model.load import load
from onnxtile.shapes.resolve import resolve
from onnxtile.system.errors import UsageError
from tests.draws import draws
from tests.fitting.networks import inverted_residuals, model
from tests.fitting.test_quantised import quantised


def image(channels: int, rows: int = 24, columns: int = 20) -> onnx.ModelProto:
    """Return two strided convolutions of an image, and a mean."""
    return model(
        f"""
g (float[1,{channels},{rows},{columns}] x) => (float[1,8,1,1] y) {{
    [first] a = Conv<kernel_shape=[3,3], strides=[2,2], pads=[1,1,1,1]>(x, w0)
    [relu] b = Relu(a)
    [second] c = Conv<kernel_shape=[3,3], strides=[2,2], pads=[1,1,1,1]>(b, w1)
    [mean] y = GlobalAveragePool(c)
}}""",
        w0=(4, channels, 3, 3),
        w1=(8, 4, 3, 3),
    )


IMAGES = {"one channel": image(1), "three channels": image(3)}


@pytest.mark.parametrize("source", IMAGES.values(), ids=IMAGES)
def test_an_input_inside_dies_row_by_row(source: onnx.ModelProto, tmp_path: Path) -> None:
    (given_bytes,) = (tensor.size for tensor in network_of(source, "inside").tensors if tensor.name == "x")
    # What is cut lives beside the rows that are left, so it takes little more than the input alone.
    fitted = onnxtile.fit(source, capacity=int(1.4 * given_bytes), io="inside")
    assert given_bytes <= fitted.after.arena <= 1.4 * given_bytes
    assert fitted.verdict is not None and fitted.verdict.equal
    assert fitted.arena_verdict is not None and fitted.arena_verdict.equal
    fitted.save(tmp_path / "out.onnx")
    assert onnxtile.plan(tmp_path / "out.onnx", io="overwrite").plan.arena_size == fitted.after.arena


@pytest.mark.parametrize(("source", "share"), [(image(1), 1.4), (image(3), 1.2)])
def test_the_bytes_of_the_search_are_those_of_the_plan(source: onnx.ModelProto, share: float) -> None:
    given_bytes = next(tensor.size for tensor in network_of(source, "inside").tensors if tensor.name == "x")
    fitted = onnxtile.fit(source, capacity=int(share * given_bytes), io="inside", tolerance="exact")
    in_order = onnxtile.plan(fitted.model, order="model", verify=False, io="overwrite").plan
    cut = [step.peak for step in fitted.steps if step.strips > 1]
    assert cut
    assert in_order.peak <= max(cut)


def test_both_places_of_inputs_are_reported() -> None:
    source = image(1)
    for io in ("outputs", "inside"):
        fitted = onnxtile.fit(source, capacity=3072, io=io)
        outside, inside = fitted.inputs
        assert (outside.inside, inside.inside) == (False, True)
        own = inside if io == "inside" else outside
        assert (own.before, own.after) == (fitted.before.arena, fitted.after.arena)
        assert outside.after == onnxtile.plan(fitted.model, verify=False).plan.arena_size
        assert inside.after == onnxtile.plan(fitted.model, verify=False, io="overwrite").plan.arena_size
        assert inside.before == onnxtile.plan(source, verify=False, io="overwrite").plan.arena_size
        places = fitted.to_dict()["inputs"]
        assert [place["inside"] for place in places] == [False, True]


def test_outputs_outside_are_not_counted() -> None:
    source = model("g (float[1,4,32,8] x) => (float[1,4,32,8] y) {\n  a = Relu(x)\n  y = Neg(a)\n}")
    assert onnxtile.fit(source, capacity="8KiB", io="outside").before.arena == 4 * 32 * 8 * 4
    assert onnxtile.fit(source, capacity="8KiB", io="inside").before.arena == 2 * 4 * 32 * 8 * 4 / 2


def test_an_input_that_is_read_twice_lives_to_its_last_reader() -> None:
    """A skip from the input reads its rows again after the first run of operators."""
    source = model(
        """
g (float[1,1,24,16] x) => (float[1,1,1,1] y) {
    [first] a = Conv<kernel_shape=[3,3], pads=[1,1,1,1]>(x, w0)
    [second] b = Conv<kernel_shape=[3,3], pads=[1,1,1,1]>(a, w1)
    [skip] c = Add(b, x)
    [mean] y = GlobalAveragePool(c)
}""",
        w0=(4, 1, 3, 3),
        w1=(1, 4, 3, 3),
    )
    fitted = onnxtile.fit(source, capacity="4KiB", io="inside")
    assert fitted.after.arena >= 24 * 16 * 4
    assert fitted.arena_verdict is not None and fitted.arena_verdict.equal


def test_two_memories_take_no_place_of_inputs() -> None:
    with pytest.raises(UsageError, match="io is for one memory"):
        onnxtile.fit(image(1), capacity={"sram": 4096, "dram": 2**20}, io="inside")


def test_inverted_residuals_with_the_input_inside() -> None:
    source = inverted_residuals()
    given_bytes = 3 * 33 * 20 * 4
    fitted = onnxtile.fit(source, capacity="16KiB", io="inside")
    assert given_bytes < fitted.after.arena <= 2**14 < fitted.before.arena
    assert fitted.arena_verdict is not None and fitted.arena_verdict.equal


def test_an_input_of_floats_that_is_quantised_lives_to_the_last_strip(tmp_path: Path) -> None:
    """A Slice runs in the island of the QuantizeLinear after it, which reads all of the input to the plan."""
    source = quantised()
    whole = next(tensor for tensor in network_of(source, "inside").tensors if tensor.is_given)
    assert not whole.dies_by_rows
    fitted = onnxtile.fit(source, capacity="smallest", io="inside")
    assert whole.size < fitted.after.arena < fitted.before.arena
    assert fitted.arena_verdict is not None and fitted.arena_verdict.equal
    fitted.save(tmp_path / "out.onnx")
    assert onnxtile.plan(tmp_path / "out.onnx", io="overwrite").plan.arena_size == fitted.after.arena


# Inputs on plain data.


def network_of(source: onnx.ModelProto, io: str) -> Any:
    loaded = load(source)
    return read_network(loaded, resolve(loaded), Constants(loaded), io=io)


@pytest.mark.parametrize(("io", "outside"), [("outputs", {"x"}), ("inside", set()), ("outside", {"x", "y"})])
def test_the_place_says_what_is_outside(io: str, outside: set[str]) -> None:
    network = network_of(image(1), io)
    assert {tensor.name for tensor in network.tensors if tensor.is_outside} == outside
    assert {network.tensors[number].name for number in network.given} == ({"x"} if io == "inside" else set())


@given(
    channels=some.integers(1, 4),
    rows=some.integers(1, 9),
    columns=some.integers(1, 40),
    item=some.sampled_from([1, 2, 4]),
)
@draws(30, 120)
def test_rows_that_are_left_take_their_blocks(channels: int, rows: int, columns: int, item: int) -> None:
    from onnxtile.fitting.live_bytes import bytes_from

    about = FitTensor("x", (1, channels, rows, columns), item, 2, is_given=True)
    first = np.arange(rows + 1)
    plane = rows * columns * item
    for row, size in zip(first.tolist(), bytes_from(about, first).tolist(), strict=True):
        held = [byte for c in range(channels) for byte in range(c * plane + row * columns * item, (c + 1) * plane)]
        assert size == len({byte // ALIGNMENT for byte in held}) * ALIGNMENT
