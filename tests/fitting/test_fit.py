"""fit: the arena of the result is what plan says of it, and the outputs are those of the model."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import onnx_ir
import pytest

import onnxtile
from onnxtile.arena.run import ArenaVerdict
from onnxtile.fitting.read_network import read_network
from onnxtile.fitting.regions import Regions
from onnxtile.fitting.search import FitTarget, search
from onnxtile.fitting.strips import Cut, FitSchedule
from onnxtile.model.constants import Constants
from onnxtile.model.load import load
from onnxtile.shapes.resolve import resolve
from onnxtile.system.progress import Progress, silent
from onnxtile.verbs.fit import FitOptions
from onnxtile.verbs.flows import fit_drafts as fit_attempts
from onnxtile.verbs.flows.fit import attempt, read_subject
from onnxtile.verbs.flows.fit_drafts import WrittenSchedule, written
from onnxtile.verbs.flows.results import ModelPlan
from onnxtile.verification.rounding import judge
from tests.fitting.networks import branches, inverted_residuals, model
from tests.fitting.test_quantised import quantised


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
    with pytest.raises(
        onnxtile.Infeasible, match=r"the smallest arena reached is .* bytes; while project1 runs, 2 pieces of"
    ):
        onnxtile.fit(inverted_residuals(), capacity=500)


@pytest.mark.parametrize("capacity", [500, 4000])
def test_what_is_in_the_way_has_its_bytes_in_the_plan(capacity: int) -> None:
    options = FitOptions(inverted_residuals(), capacity=capacity)
    fitted = attempt(options, read_subject(options))
    blocked = fitted.blocked_by
    assert blocked is not None and fitted.reason is not None
    sizes = [int(found.replace(",", "")) for found in re.findall(r"\(([\d,]+) bytes\)", " ".join(blocked.tensors))]
    assert sum(sizes) == blocked.peak == fitted.after.peak
    assert blocked.kernel in blocked.nodes and blocked.kernel in fitted.reason
    assert blocked.reasons[0].startswith(f"{blocked.kernel}: ")


def test_what_is_not_cut_says_why() -> None:
    text = "g (float[1,3,20,12] x) => (float[n,c,h,v] y) { [norm] h = Trilu(x) [pool] y = GlobalMaxPool(h) }"
    whole = model(text)
    with pytest.raises(onnxtile.Infeasible):
        onnxtile.fit(whole, capacity=500)
    shapes = resolve(made := load(whole), run=False)
    kernels = read_network(made, shapes, Constants(made)).kernels
    assert [kernel.reason for kernel in kernels] == [
        "Trilu has no rule for cutting",
        "it reads the whole of this axis",
    ]


def test_matrix_products_are_not_cut_where_the_result_must_be_exact() -> None:
    """onnxruntime multiplies one row by another kernel than several."""
    made = model(
        "g (float[1,24,96] x) => (float[1,24,40] y) { [up] h = MatMul(x, a) [act] k = Relu(h) [down] y = MatMul(k, b) }",
        a=(96, 700),
        b=(700, 40),
    )
    assert onnxtile.fit(made, smallest=True).after.arena < onnxtile.plan(made).plan.arena_size
    exact = onnxtile.fit(made, smallest=True, exact=True)
    assert exact.verdict is not None and all(output.max_abs == 0 for output in exact.verdict.outputs)


def test_results_of_one_operator_with_rows_along_different_axes_are_equal_and_say_why() -> None:
    """The keys of attention between channels are turned, so that their rows are channels; values have rows of tokens."""
    made = model(
        """
g (float[1,24,8] x) => (float[1,24,6] y)
    <int64[4] sizes = {1, 24, 3, 6}, int64[3] one = {1, 1, 1}, int64[1] axis = {2}> {
    a = MatMul(x, w)
    b = Reshape(a, sizes)
    [parts] q4, k4, v4 = Split<axis=2>(b, one)
    q = Squeeze(q4, axis)
    k = Squeeze(k4, axis)
    v = Squeeze(v4, axis)
    t = Transpose<perm=[0,2,1]>(k)
    s = MatMul(t, q)
    p = Softmax(s)
    y = MatMul(v, p)
}""",
        w=(8, 18),
    )
    loaded = load(made)
    network = read_network(loaded, resolve(loaded, run=True), Constants(loaded))
    parts = next(kernel for kernel in network.kernels if kernel.name == "parts")
    assert parts.links is None and parts.reason == "its results have rows along different axes"
    whole = onnxtile.plan(made).plan.arena_size
    fitted = onnxtile.fit(made, smallest=True, max_extra_macs="50%")
    assert fitted.verdict is not None and fitted.verdict.equal and fitted.after.arena <= whole


def test_operators_that_are_not_cut_keep_their_operands_inside_a_region() -> None:
    """The bounds of the Slice are computed from a shape, and the Resize interpolates along two axes that it names."""
    made = model(
        """
g (float[1,4,16,8] x) => (float[1,4,32,16] y)
    <int64[1] zero = {0}, int64[1] two = {2}, int64[1] axis = {1}, float[2] scales = {2.0, 2.0}> {
    a = Conv<pads=[1,1,1,1], kernel_shape=[3,3]>(x, w0)
    b = Shape<start=1, end=2>(a)
    end = Div(b, two)
    [half] c = Slice(a, zero, end, axis)
    d = Conv<pads=[1,1,1,1], kernel_shape=[3,3]>(c, w1)
    [double] e = Resize<mode="linear", axes=[2,3]>(d, , scales)
    y = Conv(e, w2)
}""",
        w0=(8, 4, 3, 3),
        w1=(4, 4, 3, 3),
        w2=(4, 4, 1, 1),
    )
    made.opset_import[0].version = 18
    subject = read_subject(FitOptions(made, smallest=True))
    kernels = subject.regions.network.kernels
    assert {kernel.name for kernel in kernels if kernel.reason} >= {"half", "double"}
    region = subject.regions.cost(0, len(kernels), Cut(4))
    assert region is not None and not region.is_whole
    cut = written(subject, FitSchedule((region,)))
    assert judge(subject.original, cut.model, silent).equal


def test_the_arena_is_that_of_the_defaults_of_plan_where_another_order_is_smaller(tmp_path: Path) -> None:
    planned = onnxtile.plan(branches()).plan.arena_size
    assert planned < onnxtile.plan(branches(), order="model").plan.arena_size
    assert onnxtile.fit(branches(), capacity="1MiB").before.arena == planned
    fitted = onnxtile.fit(branches(), capacity=planned - 1)
    fitted.save(tmp_path / "out.onnx")
    assert onnxtile.plan(tmp_path / "out.onnx").plan.arena_size == fitted.after.arena


def test_a_schedule_with_gaps_is_planned_in_full_before_a_smaller_one_is_sought(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(WrittenSchedule, "arena", property(lambda self: self.allocation.size + (1 << 20)))
    sought: list[int | None] = []

    def counted(regions: Regions, wanted: FitTarget, progress: Progress) -> FitSchedule:
        sought.append(wanted.capacity)
        return search(regions, wanted, progress)

    monkeypatch.setattr(fit_attempts, "search_soon", counted)
    assert onnxtile.fit(inverted_residuals(), capacity="10KiB", verify=False).fits
    assert sought == [10 << 10]


def test_the_model_holds_the_plan_that_the_run_inside_the_arena_proves(tmp_path: Path) -> None:
    fitted = onnxtile.fit(inverted_residuals(), capacity="10KiB")
    assert fitted.arena_verdict is not None and fitted.arena_verdict.equal
    assert fitted.to_dict()["verdict"]["arena"]["kernels"] == fitted.after.nodes
    fitted.save(tmp_path / "out.onnx")
    assert onnxtile.check_plan(tmp_path / "out.onnx", tmp_path / "out.onnx").sound
    assert onnxtile.check_plan(tmp_path / "out.onnx", fitted.planned.plan).sound


def test_a_wrong_plan_is_not_passed(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(self: ModelPlan, progress: Progress) -> ArenaVerdict:
        first = next(one for one in self.plan.buffers if one.alias is None and one.offset == 0)
        moved = [replace(one, offset=0) if one.alias is None and one.arena else one for one in self.plan.buffers]
        assert len(moved) > 1 and first in self.plan.buffers
        return run(ModelPlan(self.opened, replace(self.plan, buffers=tuple(moved))), progress)

    run = ModelPlan.run
    monkeypatch.setattr(ModelPlan, "run", broken)
    with pytest.raises(onnxtile.Mismatch, match="the run inside the arena differs"):
        onnxtile.fit(inverted_residuals(), capacity="10KiB")


def test_the_costs_are_those_of_the_model_that_is_written() -> None:
    fitted = onnxtile.fit(inverted_residuals(), capacity="10KiB", max_extra_macs="50%")
    assert fitted.after.macs == onnxtile.inspect(fitted.model).to_dict()["macs"]["total"]
    assert fitted.before.macs == onnxtile.inspect(inverted_residuals()).to_dict()["macs"]["total"]
    assert fitted.after.nodes == len(fitted.model.graph)


def test_names_say_the_region_and_the_piece() -> None:
    fitted = onnxtile.fit(inverted_residuals(), capacity="10KiB")
    names = [node.name or "" for node in fitted.model.graph]
    assert "expand0/region0/piece0" in names and "expand0/region0/piece1" in names
    assert all(re.search(r"/region\d+/piece\d+$", name) for name in names if "region" in name)


@pytest.mark.parametrize("bound", [14, 40, 80])
def test_the_bound_of_nodes_holds_for_the_nodes_of_the_result(bound: int) -> None:
    fitted = onnxtile.fit(quantised(), smallest=True, max_nodes=bound)
    constants = Constants(fitted.model)
    nodes = sum(any(value not in constants for value in node.outputs) for node in fitted.model.graph)
    assert nodes == fitted.after.nodes <= max(bound, fitted.before.nodes)


def test_an_output_that_is_flat_on_noise_is_compared_before_its_sigmoid() -> None:
    head = inverted_residuals()
    head.graph.node[-1].CopyFrom(onnx.helper.make_node("Sigmoid", ["flat"], ["y"], "sigmoid"))
    head.graph.node.insert(12, onnx.helper.make_node("Sub", ["m", "far"], ["flat"], "far"))
    head.graph.initializer.append(onnx.numpy_helper.from_array(np.asarray([100], np.float32), "far"))
    head.graph.output[0].type.tensor_type.shape.CopyFrom(
        onnx.helper.make_tensor_value_info("y", 1, [1, 8, 9, 5]).type.tensor_type.shape
    )
    fitted = onnxtile.fit(head, smallest=True, max_nodes=40)
    assert fitted.verdict is not None and fitted.after.arena < fitted.before.arena
    assert "compared before the last Sigmoid" in fitted.verdict.outputs[0].reason


def test_quantised_outputs_may_be_held_to_one_step() -> None:
    fitted = onnxtile.fit(quantised(), capacity="9KiB", tolerance="1step")
    assert fitted.verdict is not None and fitted.verdict.outputs[0].max_abs <= 1 / 16


def test_the_nodes_of_local_functions_are_cut() -> None:
    text = """<ir_version: 10, opset_import: ["": 17, "local": 1]>
g (float[1,4,32,32] x) => (float[1,4,32,32] y) { y = local.block(x, w0, w1) }
<domain: "local", opset_import: ["": 17]> block (x, w0, w1) => (y) { a = Conv(x, w0) b = Relu(a) y = Conv(b, w1) }"""
    made = onnx.parser.parse_model(text)
    random = np.random.default_rng(0)
    for name, shape in (("w0", (32, 4, 1, 1)), ("w1", (4, 32, 1, 1))):
        made.graph.initializer.append(onnx.numpy_helper.from_array(random.random(shape, np.float32), name))
    fitted = onnxtile.fit(made, capacity="64KiB")
    assert fitted.before.arena > 2 * fitted.after.arena
    assert not fitted.model.functions


def test_sizes_that_only_a_run_tells_are_found_without_verification_too() -> None:
    """No inference knows the second result of the Loop, and thus the size of the sum."""
    model = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["": 17]> g (float[N, 8] x) => (float[2, N, 8] y) <int64 n = {2}> {
          a, b = Loop(n, "", x) <body = l (int64 i, bool on, float[N, 8] u) => (bool o, float[N, 8] v, float[N, 8] w)
            { o = Identity(on) v = Neg(x) w = Tanh(v) }>
          y = Add(b, b) }"""
    )
    assert onnxtile.fit(model, capacity=4096, dims={"N": 3}, verify=False).verdict is None


def test_a_scalar_constant_stays_one_in_a_model_cut_by_items() -> None:
    """The file says the shape of a constant twice, which a strict reader compares."""
    text = """g (float[3,3,6,6] x) => (float[3,3,6,6] w, float[3,3,6,6] y, float[3,3,6,6] z)
        <int64[1] i = {0}, int64[1] j = {3}, int64[1] k = {6}> {
        z = LogSoftmax<axis=-1>(x) c = Constant <value_float = 1.4142135> () d = Div(x, c) e = Erf(d) y = Mul(e, x)
        a = Slice(d, i, j, j) b = Slice(d, j, k, j) n = Neg(b) t = Concat<axis=-1>(n, a) w = Add(d, t) }"""
    fitted = onnxtile.fit(model(text), smallest=True)
    assert fitted.steps
    made = onnx_ir.to_proto(fitted.model)
    onnx.checker.check_model(made, full_check=True)
    assert [list(one.dims) for one in made.graph.initializer if one.data_type == onnx.TensorProto.FLOAT] == [[]]
