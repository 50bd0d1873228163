"""fit: the arena of the result is what plan says of it, and the outputs are those of the model."""

from __future__ import annotations

from pathlib import Path

import onnx
import onnx_ir
import pytest

import onnxtile
from tests.fitting.networks import branches, inverted_residuals, model


def test_the_arena_is_what_plan_says_and_the_outputs_are_equal(tmp_path: Path) -> None:
    fitted = onnxtile.fit(inverted_residuals(), capacity="10KiB", exact=True)
    assert fitted.before.arena > 2 * fitted.after.arena
    assert fitted.after.arena <= 10 * 1024
    assert fitted.after.macs <= fitted.before.macs
    fitted.save(tmp_path / "out.onnx")
    assert onnxtile.plan(tmp_path / "out.onnx").plan.arena_size == fitted.after.arena
    assert onnxtile.verify(inverted_residuals(), tmp_path / "out.onnx").equal
    assert any(step.strips > 1 for step in fitted.steps)


@pytest.mark.parametrize(("capacity", "exact"), [("6KiB", False), ("12KiB", False), ("10KiB", True)])
def test_the_bytes_of_the_search_are_those_of_the_plan(capacity: str, exact: bool) -> None:
    """The slices of the input take bytes, too, though the input itself is outside of the arena."""
    fitted = onnxtile.fit(inverted_residuals(), capacity=capacity, exact=exact)
    assert any(step.strips > 1 for step in fitted.steps) or not exact
    in_order = onnxtile.plan(fitted.model, order="model").plan
    assert max(step.peak for step in fitted.steps) == in_order.peak
    assert fitted.after.peak <= in_order.peak


def test_a_model_that_fits_stays_as_it_is() -> None:
    fitted = onnxtile.fit(inverted_residuals(), capacity="1MiB")
    assert fitted.fits and not fitted.steps
    assert fitted.after == fitted.before


def test_the_smallest_arena_is_below_any_that_was_asked_for() -> None:
    smallest = onnxtile.fit(inverted_residuals(), smallest=True)
    assert smallest.after.arena <= onnxtile.fit(inverted_residuals(), capacity="10KiB").after.arena


def test_constants_that_are_listed_as_inputs_are_no_inputs_of_the_result() -> None:
    old = inverted_residuals()
    old.ir_version = 3
    old.graph.initializer.append(onnx.helper.make_tensor("unread", onnx.TensorProto.INT64, [1], [4]))
    for tensor in old.graph.initializer:
        old.graph.input.append(onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims))
    fitted = onnxtile.fit(old, smallest=True, max_extra_macs="0%")
    assert any(step.chunks > 1 for step in fitted.steps), "no constant is replaced by its parts"
    assert [value.name for value in fitted.model.graph.inputs] == ["x"]


def test_the_mask_of_dropout_takes_no_bytes_where_nothing_reads_it() -> None:
    made = model(
        """
g (float[1,2,32,16] x) => (float[1,2,1,1] y) {
    [wide] a = Conv(x, w0)
    [drop] b, mask = Dropout(a)
    [narrow] c = Conv(b, w1)
    [pool] y = GlobalAveragePool(c)
}""",
        w0=(16, 2, 1, 1),
        w1=(2, 16, 1, 1),
    )
    wide = 4 * 16 * 32 * 16
    assert onnxtile.plan(made).plan.arena_size > wide
    fitted = onnxtile.fit(made, capacity=wide + wide // 8)
    assert fitted.after.arena == onnxtile.plan(fitted.model).plan.arena_size == wide + wide // 8
    assert [
        len([name for name in node.output if name])
        for node in onnx_ir.to_proto(fitted.model).graph.node
        if node.op_type == "Dropout"
    ] == [1]


def test_the_same_input_gives_the_same_model() -> None:
    first, second = (onnxtile.fit(inverted_residuals(), capacity="10KiB") for _ in range(2))
    assert [node.name for node in first.model.graph] == [node.name for node in second.model.graph]


def test_a_memory_that_is_too_small_names_what_lives_there() -> None:
    with pytest.raises(onnxtile.Infeasible, match=r"the smallest arena reached is .* bytes, where"):
        onnxtile.fit(inverted_residuals(), capacity=500)


def test_the_arena_is_that_of_the_defaults_of_plan_where_another_order_is_smaller(tmp_path: Path) -> None:
    planned = onnxtile.plan(branches()).plan.arena_size
    assert planned < onnxtile.plan(branches(), order="model").plan.arena_size
    assert onnxtile.fit(branches(), capacity="1MiB").before.arena == planned
    fitted = onnxtile.fit(branches(), capacity=planned - 1)
    fitted.save(tmp_path / "out.onnx")
    assert onnxtile.plan(tmp_path / "out.onnx").plan.arena_size == fitted.after.arena
