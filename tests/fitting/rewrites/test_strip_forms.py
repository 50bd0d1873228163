"""Operators over whole maps, written as those that are made strip by strip: poolings to one pixel, and a pixel that is repeated."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import onnxtile
from onnxtile.fitting.editing import ModelEdit
from onnxtile.fitting.rewrites.order import reduce_together
from onnxtile.fitting.rewrites.strip_forms import join_boxes, pool_whole_maps, rename_transposes, repeat_pixels
from onnxtile.model.load import load
from onnxtile.shapes.resolve import resolve
from tests.fitting.networks import model, run

# A gate of the mean and the maximum of each channel, as in CBAM (Woo et al., arXiv:1807.06521), and a mean that is repeated over the map,
# as in the pyramid of DeepLabv3 (Chen et al., arXiv:1706.05587).


def gated_by_two() -> onnx.ModelProto:
    """Return a wide tensor between two narrow ones, which its means and its maxima scale."""
    text = """
g (float[1,4,32,32] x) => (float[1,4,32,32] y) {
    [stem] s = Conv<kernel_shape=[3,3], pads=[1,1,1,1]>(x, w0)
    [wide] a = Conv(s, w1)
    [relu] b = Relu(a)
    [mean] m = AveragePool<kernel_shape=[32,32]>(b)
    [less0] n = Conv(m, w2)
    [extreme] e = MaxPool<kernel_shape=[32,32]>(b)
    [less1] o = Conv(e, w2)
    [both] p = Add(n, o)
    [gate] q = Sigmoid(p)
    [gated] r = Mul(b, q)
    [narrow] t = Conv(r, w3)
    [add] y = Add(t, s)
}"""
    return model(text, w0=(4, 4, 3, 3), w1=(32, 4, 1, 1), w2=(32, 32, 1, 1), w3=(4, 32, 1, 1))


def pyramid(resize: str, size: int = 1) -> onnx.ModelProto:
    """Return a map beside the mean of its channels, which `resize` repeats for each pixel."""
    mean = "GlobalAveragePool(a)" if size == 1 else "AveragePool<kernel_shape=[16,16], strides=[16,16]>(a)"
    text = f"""
g (float[1,4,32,32] x) => (float[1,2,32,32] y) {{
    [stem] a = Conv<kernel_shape=[3,3], pads=[1,1,1,1]>(x, w0)
    [mean] m = {mean}
    [resize] r = Resize<{resize}>(m, , , sizes)
    [local] b = Conv(a, w1)
    [joined] c = Concat<axis=1>(b, r)
    [head] y = Conv(c, w2)
}}"""
    return model(text, w0=(8, 4, 3, 3), w1=(8, 8, 1, 1), w2=(2, 16, 1, 1), sizes=[1, 8, 32, 32])


def edit_of(made: onnx.ModelProto) -> ModelEdit:
    read = load(made)
    return ModelEdit(read, resolve(read))


def same(made: onnx.ModelProto, edit: ModelEdit, x: np.ndarray[Any, Any]) -> bool:
    return np.array_equal(run(made, x)[0], run(ir.to_proto(edit.model), x)[0])


def test_poolings_of_whole_maps_are_global_and_reduced_one_after_the_other() -> None:
    made = gated_by_two()
    x = np.random.default_rng(1).standard_normal((1, 4, 32, 32)).astype(np.float32)
    edit = edit_of(made)
    assert [node.name for node in pool_whole_maps(edit, exact=True)] == ["extreme"]
    assert same(made, edit, x)
    edit = edit_of(made)
    assert [node.name for node in pool_whole_maps(edit, exact=False)] == ["mean", "extreme"]
    (moved,) = reduce_together(edit)
    kinds = [node.op_type for node in edit.model.graph]
    assert moved.op_type == "GlobalMaxPool"
    assert kinds[3:5] == ["GlobalAveragePool", "GlobalMaxPool"]
    np.testing.assert_allclose(run(made, x)[0], run(ir.to_proto(edit.model), x)[0], rtol=1e-5, atol=1e-5)
    assert not reduce_together(edit)


@pytest.mark.parametrize(
    "pool",
    [
        "e = MaxPool<kernel_shape=[16,16], pads=[0,0,1,1], strides=[16,16]>(a)",
        "e = MaxPool<kernel_shape=[8,8], strides=[16,16]>(a)",
        "e, indices = MaxPool<kernel_shape=[16,16]>(a)",
        "e = MaxPool<kernel_shape=[8,8], dilations=[2,2], strides=[16,16]>(a)",
        "e = AveragePool<kernel_shape=[16,15]>(a)",
    ],
)
def test_a_pooling_stays_whose_window_is_not_the_whole_map(pool: str) -> None:
    text = f"""
g (float[1,4,16,16] x) => (float[1,4,N,M] y) {{
    [stem] a = Conv(x, w0)
    [pool] {pool}
    [end] y = Relu(e)
}}"""
    assert not pool_whole_maps(edit_of(model(text, w0=(4, 4, 1, 1))), exact=False)


def test_a_tensor_that_two_reductions_scale_is_made_twice() -> None:
    made = gated_by_two()
    fitted = onnxtile.fit(made, capacity="80KiB", budget="40%")
    assert fitted.before.arena > 150 * 1024
    assert fitted.after.arena <= 80 * 1024
    assert "its operand is made twice" in " ".join(step.text for step in fitted.steps)
    assert fitted.verdict is not None and fitted.verdict.equal


@pytest.mark.parametrize(
    ("resize", "exact"), [('mode="nearest"', True), ('mode="nearest"', False), ('mode="linear"', False)]
)
def test_a_pixel_that_is_resized_is_repeated(resize: str, exact: bool) -> None:
    made = pyramid(resize)
    x = np.random.default_rng(1).standard_normal((1, 4, 32, 32)).astype(np.float32)
    edit = edit_of(made)
    assert [node.name for node in repeat_pixels(edit, exact=exact)] == ["resize"]
    assert "Expand" in {node.op_type for node in edit.model.graph}
    assert same(made, edit, x)


@pytest.mark.parametrize(
    ("resize", "size", "exact"),
    [
        ('mode="linear"', 1, True),
        ('mode="cubic"', 1, False),
        ('mode="nearest"', 2, False),
    ],
)
def test_a_resize_stays_that_reads_several_pixels_or_weighs_one(resize: str, size: int, exact: bool) -> None:
    assert not repeat_pixels(edit_of(pyramid(resize, size)), exact=exact)


def test_the_repeated_mean_of_a_pyramid_is_made_strip_by_strip() -> None:
    fitted = onnxtile.fit(pyramid('mode="nearest"'), capacity=int(1.1 * 8 * 32 * 32 * 4), budget="0%")
    # Before, the join and the result live at once. After, the map, whose mean must be known before the first row of the result, and rows.
    assert fitted.before.arena == (16 + 2) * 32 * 32 * 4
    assert fitted.after.arena <= 1.1 * 8 * 32 * 32 * 4
    assert fitted.verdict is not None and fitted.verdict.equal


# A Transpose that leaves all elements in their order has the bytes of its operand.


@pytest.mark.parametrize(
    ("order", "sizes", "is_renamed"),
    [
        pytest.param([1, 0, 2], (12, 1, 8), True, id="a batch of one"),
        pytest.param([1, 2, 0], (12, 8, 1), True, id="a batch of one at the end"),
        pytest.param([0, 2, 1], (1, 8, 12), False, id="rows become columns"),
    ],
)
def test_a_transpose_that_moves_no_element_is_a_reshape(
    order: list[int], sizes: tuple[int, ...], is_renamed: bool
) -> None:
    made = model(
        f"""
g (float[1,12,8] x) => (float[{",".join(map(str, sizes))}] y) {{
    [before] a = Relu(x)
    [turned] t = Transpose<perm={order}>(a)
    [after] y = Sigmoid(t)
}}"""
    )
    edit = edit_of(made)
    assert [node.name for node in rename_transposes(edit)] == ["turned"] * is_renamed
    assert onnxtile.verify(made, edit.model).equal
    # The operand is not read any more once it was renamed.
    whole = 4 * 12 * 8
    assert onnxtile.plan(edit.model).plan.arena_size == (whole if is_renamed else 2 * whole)


# Exporters write `x[:, :, 1:] = y` as a ScatterND that names each place of the box.


def overwritten(
    rows: tuple[int, int], columns: tuple[int, int], *, turned: bool = False, back: bool = False
) -> onnx.ModelProto:
    """Return a map of which a box is overwritten; where `back`, its places count from the end; `turned`: rows run backwards."""
    text = """
g (float[1,4,16,12] x) => (float[1,4,16,12] y) {
    [base] a = Conv<kernel_shape=[3,3], pads=[1,1,1,1]>(x, w)
    [other] b = Sigmoid(a)
    [box] c = Slice(b, starts, ends, axes)
    [put] d = ScatterND(a, places, c)
    [head] y = Relu(d)
}"""
    ranges = [np.arange(1), np.arange(4), np.arange(*rows)[:: -1 if turned else 1], np.arange(*columns)]
    places = np.stack(np.meshgrid(*ranges, indexing="ij"), axis=-1) - (np.array([1, 4, 16, 12]) if back else 0)
    bounds = {name: [row, column] for name, row, column in zip(("starts", "ends"), rows, columns, strict=True)}
    return model(text, w=(4, 4, 3, 3), places=places, axes=[2, 3], **bounds)


@pytest.mark.parametrize("back", [False, True])
@pytest.mark.parametrize(
    ("rows", "columns", "joins"),
    [((0, 16), (0, 12), 0), ((3, 16), (0, 12), 1), ((2, 9), (0, 12), 1), ((0, 16), (1, 5), 1), ((1, 16), (1, 12), 2)],
)
def test_a_box_that_is_overwritten_is_joined_with_what_is_beside(
    rows: tuple[int, int], columns: tuple[int, int], joins: int, back: bool
) -> None:
    made = overwritten(rows, columns, back=back)
    edit = edit_of(made)
    assert [node.name for node in join_boxes(edit)] == ["put"]
    assert [node.op_type for node in edit.model.graph].count("Concat") == joins
    assert same(made, edit, np.random.default_rng(3).standard_normal((1, 4, 16, 12)).astype(np.float32))


def test_places_in_another_order_stay() -> None:
    assert not join_boxes(edit_of(overwritten((2, 9), (0, 12), turned=True)))


def test_a_map_that_is_overwritten_as_a_whole_is_made_strip_by_strip() -> None:
    fitted = onnxtile.fit(overwritten((0, 16), (0, 12)), capacity=4 * 16 * 12 * 4, budget="0%")
    # Before, the base and the map that is written over it live at once.
    assert fitted.after.arena <= 4 * 16 * 12 * 4 < fitted.before.arena
    assert fitted.verdict is not None and fitted.verdict.equal
