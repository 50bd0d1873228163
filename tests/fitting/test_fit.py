"""fit: the arena of the result is what plan says of it, within the limits that are given, and the outputs are those of the model."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir
import onnx_ir as ir
import pytest
from hypothesis import given
from hypothesis import strategies as some

import onnxtile
from models.make_mobilenet_v2 import mobilenet_v2
from onnxtile.arena.run import ArenaVerdict
from onnxtile.fitting.read_network import read_network
from onnxtile.fitting.regions import Regions
from onnxtile.fitting.search import FitTarget
from onnxtile.fitting.strips import Cut, FitSchedule
from onnxtile.fitting.write import wrap
from onnxtile.model.constants import Constants
from onnxtile.model.load import load
from onnxtile.planning.model_plan import PlanSettings
from onnxtile.planning.result import PlanResult
from onnxtile.shapes.resolve import resolve
from onnxtile.system.errors import Infeasible
from onnxtile.system.long_work import Progress, silent
from onnxtile.verbs.fit import FitOptions
from onnxtile.verbs.flows import fit_drafts as fit_attempts
from onnxtile.verbs.flows.fit import attempt, candidate, fused_subject, read_subject, unblocked_subject
from onnxtile.verbs.flows.fit_drafts import OpenedModel, WrittenSchedule
from onnxtile.verbs.flows.results import ModelPlan
from onnxtile.verification.rounding import judge
from tests.draws import draws
from tests.fitting.networks import branches, inverted_residuals, model, search, written_peak
from tests.fitting.test_quantised import quantised
from tests.fitting.test_search import regions

# fit: the arena of the result is what plan says of it, and the outputs are those of the model.


SMALL = partial(inverted_residuals, 9)


@cache
def fitted_of(made: Callable[[], onnx.ModelProto], capacity: str, **options: Any) -> onnxtile.FittedModel:
    """Return a model cut to a capacity, of which several tests read something."""
    return onnxtile.fit(made(), capacity=capacity, **options)


def test_no_result_is_planned_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    planned: list[ir.Model] = []
    plan_of = fit_attempts.planned_model

    def counted(about: OpenedModel, options: PlanSettings) -> ModelPlan:
        planned.append(about.unfolded.model)
        return plan_of(about, options)

    monkeypatch.setattr(fit_attempts, "planned_model", counted)
    assert onnxtile.fit(inverted_residuals(), capacity="10KiB").after.arena <= 10 * 1024
    names = [tuple(node.name for node in one.graph) for one in planned]
    assert planned
    assert len(set(names)) == len(names)


@pytest.mark.parametrize(("capacity", "exact"), [("3KiB", False), ("4KiB", False), ("4KiB", True)])
def test_the_bytes_of_the_search_are_those_of_the_plan(capacity: str, exact: bool) -> None:
    """The slices of the input take bytes, too, though the input itself is outside of the arena."""
    fitted = onnxtile.fit(inverted_residuals(9), capacity=capacity, tolerance="exact" if exact else None)
    assert any(step.strips > 1 for step in fitted.steps) or not exact
    in_order = onnxtile.plan(fitted.model, order="model").plan
    assert max(step.peak for step in fitted.steps) == in_order.peak
    assert fitted.after.peak <= in_order.peak
    assert fitted.after.macs <= fitted.before.macs
    assert onnxtile.plan(fitted.model).plan.arena_size <= fitted.after.arena < fitted.before.arena
    assert onnxtile.verify(inverted_residuals(9), fitted.model).equal


def test_a_model_that_fits_stays_as_it_is() -> None:
    fitted = onnxtile.fit(inverted_residuals(), capacity="1MiB")
    assert fitted.fits and not fitted.steps
    assert fitted.after == fitted.before


def test_the_smallest_arena_is_below_any_that_was_asked_for() -> None:
    smallest = onnxtile.fit(inverted_residuals(5, 8), capacity="smallest")
    assert smallest.after.arena <= onnxtile.fit(inverted_residuals(5, 8), capacity=1500).after.arena < 1500


def test_constants_that_are_listed_as_inputs_are_no_inputs_of_the_result() -> None:
    old = inverted_residuals(9)
    old.ir_version = 3
    old.graph.initializer.append(onnx.helper.make_tensor("unread", onnx.TensorProto.INT64, [1], [4]))
    for tensor in old.graph.initializer:
        old.graph.input.append(onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims))
    fitted = onnxtile.fit(old, capacity=5000, budget="0%")
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
    first, second = fitted_of(inverted_residuals, "10KiB"), onnxtile.fit(inverted_residuals(), capacity="10KiB")
    assert [node.name for node in first.model.graph] == [node.name for node in second.model.graph]


@pytest.mark.parametrize(("capacity", "said"), [(500, "; while relu0 runs, 2 pieces of a"), (1000, "")])
def test_what_is_in_the_way_is_named_and_has_its_bytes_in_the_plan(capacity: int, said: str) -> None:
    options = FitOptions(inverted_residuals(9, 8), capacity=capacity)
    fitted = attempt(options, read_subject(options))
    blocked = fitted.blocked_by
    assert blocked is not None and fitted.reason is not None
    assert "the search came down to" in fitted.reason and "smallest" not in fitted.reason and said in fitted.reason
    sizes = [int(found.replace(",", "")) for found in re.findall(r"\(([\d,]+) bytes\)", " ".join(blocked.tensors))]
    assert sum(sizes) == blocked.peak == fitted.after.peak
    assert blocked.kernel in blocked.nodes and blocked.kernel in fitted.reason
    assert blocked.reasons[0].startswith(f"{blocked.kernel}: ")


def test_what_is_not_cut_says_why() -> None:
    text = "g (float[1,3,20,12] x) => (float[n,c,h,v] y) { [norm] h = Trilu(x) [pool] y = GlobalLpPool(h) }"
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
    assert onnxtile.fit(made, capacity=onnxtile.plan(made).plan.arena_size * 3 // 4).steps
    exact = onnxtile.fit(made, capacity="smallest", tolerance="exact")
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
    fitted = onnxtile.fit(made, capacity="smallest", budget="50%")
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
    subject = read_subject(FitOptions(made, capacity="smallest"))
    kernels = subject.regions.network.kernels
    assert {kernel.name for kernel in kernels if kernel.reason} >= {"half", "double"}
    region = subject.regions.cost(0, len(kernels), Cut(4))
    assert region is not None and not region.is_whole
    cut = WrittenSchedule(subject, FitSchedule((region,)))
    assert judge(subject.original, cut.written.model, silent).equal


def test_the_arena_is_that_of_the_defaults_of_plan_where_another_order_is_smaller(tmp_path: Path) -> None:
    planned = onnxtile.plan(branches()).plan.arena_size
    assert planned < onnxtile.plan(branches(), order="model").plan.arena_size
    assert onnxtile.fit(branches(), capacity="1MiB").before.arena == planned
    fitted = onnxtile.fit(branches(), capacity=planned - 1)
    fitted.save(tmp_path / "out.onnx")
    assert onnxtile.plan(tmp_path / "out.onnx").plan.arena_size == fitted.after.arena


def test_a_schedule_with_gaps_is_planned_before_a_smaller_one_is_sought(monkeypatch: pytest.MonkeyPatch) -> None:
    without = onnxtile.fit(inverted_residuals(), capacity="10KiB", verify=False)
    monkeypatch.setattr(WrittenSchedule, "arena", property(lambda self: self.allocation.size + (1 << 20)))
    found = onnxtile.fit(inverted_residuals(), capacity="10KiB", verify=False)
    assert found.fits and found.after == without.after


def test_a_schedule_whose_plan_is_larger_than_it_was_placed_gives_way_to_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    capacity, first, planned = 10 << 10, list[FitSchedule](), WrittenSchedule.plan.fget  # type: ignore[attr-defined]

    def larger_at_first(draft: WrittenSchedule) -> PlanResult:
        plan: PlanResult = planned(draft)
        if draft.schedule.is_whole or draft.schedule not in (first or [draft.schedule]):
            return plan
        first[:] = [draft.schedule]
        return replace(plan, arenas=(replace(plan.arenas[0], size=capacity + 1),))

    monkeypatch.setattr(WrittenSchedule, "plan", property(larger_at_first))
    assert onnxtile.fit(inverted_residuals(), capacity=capacity, verify=False).fits
    assert first


def test_the_model_holds_the_plan_that_the_run_inside_the_arena_proves(tmp_path: Path) -> None:
    fitted = fitted_of(inverted_residuals, "10KiB")
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
    fitted = onnxtile.fit(inverted_residuals(), capacity="10KiB", budget="50%")
    assert fitted.after.macs == onnxtile.inspect(fitted.model).to_dict()["macs"]["total"]
    assert fitted.before.macs == onnxtile.inspect(inverted_residuals()).to_dict()["macs"]["total"]
    assert fitted.after.nodes == len(fitted.model.graph)


def test_names_say_the_region_and_the_piece() -> None:
    fitted = fitted_of(inverted_residuals, "10KiB")
    names = [node.name or "" for node in fitted.model.graph]
    assert "expand0/region0/piece0" in names and "expand0/region0/piece1" in names
    assert all(re.search(r"/region\d+/piece\d+$", name) for name in names if "region" in name)


@pytest.mark.parametrize("bound", [14, 40, 80])
def test_the_bound_of_nodes_holds_for_the_nodes_of_the_result(bound: int) -> None:
    fitted = onnxtile.fit(quantised(16), capacity="smallest", budget=f"{bound}nodes")
    constants = Constants(fitted.model)
    nodes = sum(any(value not in constants for value in node.outputs) for node in fitted.model.graph)
    assert nodes == fitted.after.nodes <= max(bound, fitted.before.nodes)


def test_an_output_that_is_flat_on_noise_is_compared_before_its_sigmoid() -> None:
    head = inverted_residuals(9)
    head.graph.node[-1].CopyFrom(onnx.helper.make_node("Sigmoid", ["flat"], ["y"], "sigmoid"))
    head.graph.node.insert(12, onnx.helper.make_node("Sub", ["m", "far"], ["flat"], "far"))
    head.graph.initializer.append(onnx.numpy_helper.from_array(np.asarray([100], np.float32), "far"))
    head.graph.output[0].type.tensor_type.shape.CopyFrom(
        onnx.helper.make_tensor_value_info("y", 1, [1, 8, 3, 5]).type.tensor_type.shape
    )
    fitted = onnxtile.fit(head, capacity=5000, budget="40nodes")
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
    fitted = onnxtile.fit(model(text), capacity="smallest")
    assert fitted.steps
    made = onnx_ir.to_proto(fitted.model)
    onnx.checker.check_model(made, full_check=True)
    assert [list(one.dims) for one in made.graph.initializer if one.data_type == onnx.TensorProto.FLOAT] == [[]]


# The arena of fit is what plan says of the file that it wrote, to the byte, on real models and within their budgets.


LINES = [
    ("squeezenet", "2MiB", "0%"),
    *(
        pytest.param(*line, marks=pytest.mark.slow)
        for line in (
            ("resnet50", "3MiB", "0%"),
            ("resnet50", "2MiB", "0%"),
            ("squeezenet", "512KiB", "1%"),
            ("shufflenet", "640KiB", "0%"),
            ("shufflenet", "512KiB", "7%"),
            ("densenet121", "2MiB", "0%"),
            ("inception_v1", "1.25MiB", "0%"),
            ("mobilenet 1.0 224", "1MiB", "0%"),
            ("mobilenet 1.0 224", "512KiB", "2%"),
            ("mobilenet 1.0 224", "256KiB", "5%"),
            ("mobilenet 0.35 144", "96KiB", "3%"),
        )
    ),
]


ESTIMATES = [
    ("squeezenet", "512KiB", "1%"),
    *(
        pytest.param(*line, marks=pytest.mark.slow)
        for line in (
            ("resnet50", "2MiB", "0%"),
            ("shufflenet", "512KiB", "7%"),
            ("densenet121", "2MiB", "0%"),
            ("inception_v1", "1.25MiB", "0%"),
            ("mobilenet 0.35 144", "96KiB", "3%"),
        )
    ),
]


def _mobilenet(width: float, size: int) -> onnx.ModelProto:
    """Return MobileNetV2 with random weights and a batch of 1."""
    return mobilenet_v2(size, width=width, seed=0)


@pytest.mark.filterwarnings("ignore:.*constants alone in the new model")
@pytest.mark.parametrize(("name", "capacity", "budget"), LINES)
def test_the_arena_is_what_plan_says_of_the_file(
    name: str, capacity: str, budget: str, light: Callable[[str], Path], tmp_path: Path
) -> None:
    kind, *sizes = name.split()
    made = _mobilenet(float(sizes[0]), int(sizes[1])) if sizes else light(kind)
    dims = {"batch": 1} if sizes else None
    fitted = onnxtile.fit(made, capacity=capacity, budget=budget, dims=dims, verify=False)
    fitted.save(tmp_path / "out.onnx")
    arena = onnxtile.plan(tmp_path / "out.onnx", verify=False).plan.arena_size
    assert arena == fitted.after.arena or (arena < fitted.after.arena and fitted.after.nodes > 500)
    assert fitted.after.macs <= fitted.before.macs * (1 + float(budget.rstrip("%")) / 100)
    assert fitted.after.macs == onnxtile.inspect(tmp_path / "out.onnx").to_dict()["macs"]["total"]


@pytest.mark.parametrize(("name", "capacity", "budget"), ESTIMATES)
def test_the_peak_of_the_search_is_that_of_the_plan_within_a_hundredth(
    name: str, capacity: str, budget: str, light: Callable[[str], Path]
) -> None:
    kind, *sizes = name.split()
    made = _mobilenet(float(sizes[0]), int(sizes[1])) if sizes else light(kind)
    dims = {"batch": 1} if sizes else {}
    options = FitOptions(made, capacity=capacity, budget=budget, dims=dims)
    subject = unblocked_subject(read_subject(options))
    assert options.memory is not None
    schedule = search(subject.regions, FitTarget(options.memory[1], options.extra_macs))
    assert not schedule.is_whole and schedule.peak <= options.memory[1]
    peak = written_peak(WrittenSchedule(subject, schedule))
    assert abs(schedule.peak - peak) <= peak / 100


# More memory never gives a result with more multiply-accumulates, or none.


_BUDGET = 0.6


@cache
def _found(rows: int, capacity: int, in_chunks: bool) -> FitSchedule:
    about = regions(rows)
    return search(about if in_chunks else Regions(about.network), FitTarget(capacity, _BUDGET))


@draws(4)
@given(
    rows=some.sampled_from([9, 13]),
    in_chunks=some.booleans(),
    capacities=some.tuples(some.integers(10, 60), some.integers(1, 30)),
)
def test_more_memory_gives_no_more_products(rows: int, in_chunks: bool, capacities: tuple[int, int]) -> None:
    less, more = 64 * capacities[0], 64 * sum(capacities)
    small, large = _found(rows, less, in_chunks), _found(rows, more, in_chunks)
    if small.peak <= less:
        assert large.peak <= more
        assert large.macs <= small.macs


# fit --fuse: the model is fused before it is cut, or its pieces are; the best result is written.


def gated() -> onnx.ModelProto:
    """Return convolutions whose results are multiplied by their sigmoids: fused, these are inside of one kernel."""
    return model(
        """
g (float[1,4,16,16] x) => (float[1,4,1,1] y) {
    [first] a = Conv<kernel_shape=[3,3], pads=[1,1,1,1]>(x, w)
    [gate] b = Sigmoid(a)
    [gated] c = Mul(a, b)
    [pool] y = GlobalAveragePool(c)
}""",
        w=(4, 4, 3, 3),
    )


@pytest.mark.parametrize("wrap", [False, True])
def test_the_result_is_planned_as_it_was_written_and_computes_the_same(wrap: bool, tmp_path: Path) -> None:
    fitted = fitted_of(SMALL, "3500", functions=("fuse", "wrap") if wrap else "fuse")
    assert fitted.arena_verdict is not None and fitted.arena_verdict.equal
    fitted.save(tmp_path / "out.onnx")
    assert onnxtile.plan(tmp_path / "out.onnx").plan.arena_size == fitted.after.arena <= 3500
    assert onnxtile.verify(SMALL(), tmp_path / "out.onnx").equal
    assert fitted.after.macs == onnxtile.inspect(tmp_path / "out.onnx").to_dict()["macs"]["total"]


def test_where_the_fused_model_fits_it_is_not_cut() -> None:
    plain = onnxtile.plan(gated()).plan.arena_size
    fused = onnxtile.plan(onnxtile.fuse(gated()).model).plan.arena_size
    assert fused < plain
    fitted = onnxtile.fit(gated(), capacity=fused, functions="fuse")
    assert fitted.after.arena <= fused and fitted.after.nodes < fitted.before.nodes
    assert [step.kind for step in fitted.steps] == ["fuse"]
    assert fitted.steps[0].text.endswith("fused before the model is cut")
    assert fitted.after.macs == fitted.before.macs


def test_pieces_are_fused_where_the_fused_model_does_not_fit() -> None:
    fitted = fitted_of(SMALL, "3500", functions="fuse")
    plain = onnxtile.fit(SMALL(), capacity=3500, verify=False)
    assert fitted.steps[-1].kind == "fuse" and "after" in fitted.steps[-1].text
    assert fitted.after.nodes < plain.after.nodes


@pytest.mark.parametrize("made", [partial(inverted_residuals, 5, 8), partial(quantised, 16), gated])
def test_the_smallest_of_three_is_written(made: Callable[[], onnx.ModelProto]) -> None:
    options = FitOptions(made(), capacity="smallest", functions="fuse", verify=False)
    subject = read_subject(options)
    arenas = [candidate(options, one).plan.arena_size for one in (subject, fused_subject(subject))]
    assert onnxtile.fit(made(), capacity="smallest", functions="fuse").after.arena <= min(arenas)


def test_two_memories_are_not_fused() -> None:
    with pytest.raises(onnxtile.UsageError, match="fuse is for one memory"):
        onnxtile.fit(gated(), capacity={"sram": 4096, "dram": 65536}, functions="fuse")


# fit with a fast and a slow memory: kernels work in the fast one, and the fewest bytes are copied.


MODEL = inverted_residuals()
SLOW = 1 << 20


def fitted(fast: int, **options: Any) -> onnxtile.FittedModel:
    return onnxtile.fit(MODEL, capacity={"sram": fast, "dram": SLOW}, **options)


def largest_operator() -> int:
    """Return the bytes of the operator that needs the most."""
    with pytest.raises(onnxtile.OnnxtileError) as error:
        onnxtile.plan(MODEL, movement="activations", capacity={"sram": 64, "dram": SLOW})
    return int(str(error.value).split(" needs ")[1].split(" bytes")[0].replace(",", ""))


def test_a_model_that_is_cut_has_its_kernels_in_the_fast_memory() -> None:
    """Not one of its operators is left that needs as many bytes as before."""
    fast = largest_operator() * 3 // 4
    result = fitted(fast, budget="20%")
    plan = result.planned.plan
    assert plan.movement is not None and result.steps
    assert result.fits and result.after.arena == plan.arenas[0].size <= fast
    assert result.verdict is not None and result.verdict.equal
    assert result.arena_verdict is not None and result.arena_verdict.equal
    assert plan.movement.lower_bound <= plan.movement.bytes
    assert result.to_dict()["movement"]["bytes"] == plan.movement.bytes


def test_a_model_that_needs_no_cut_copies_only_inputs_and_outputs() -> None:
    result = fitted(1 << 20)
    movement = result.planned.plan.movement
    assert movement is not None and not result.steps
    assert movement.bytes == movement.forced == 4 * (3 * 33 * 20 + 8)


def test_the_written_model_is_what_was_planned(tmp_path: Path) -> None:
    fitted(largest_operator(), budget="20%").save(tmp_path / "fitted.onnx")
    audit = onnxtile.check_plan(tmp_path / "fitted.onnx", tmp_path / "fitted.onnx")
    assert audit.sound, audit.failures


def test_an_operator_that_cannot_be_cut_is_named() -> None:
    whole = model("g (float[4,64] x) => (float[64,4] y) { h = Softmax<axis=0>(x) y = Transpose(h) }")
    with pytest.raises(Infeasible, match=r"\(Transpose\) needs 2,048 bytes for its operands and results"):
        onnxtile.fit(whole, capacity={"sram": 1024, "dram": SLOW})


# fit --target: the limits of the hardware hold for the pieces, and the arena is that of the tiled pieces.


LIMITS = "k = 16\nn = 16\nrows = 8\nchannels = 8\nfilters = 16\n"


@pytest.fixture(name="limits")
def fixture_limits(tmp_path: Path) -> str:
    """A limits file that cuts convolutions."""
    (tmp_path / "limits.toml").write_text(LIMITS)
    return str(tmp_path / "limits.toml")


@pytest.mark.parametrize("wrap", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_the_limits_hold_for_the_pieces(limits: str, tmp_path: Path, wrap: bool) -> None:
    made = inverted_residuals(5, 8)
    fitted = onnxtile.fit(made, capacity="1.25KiB", target=limits, functions="wrap" if wrap else ())
    assert fitted.after.arena <= 1.25 * 1024 and fitted.steps
    assert fitted.tiled is not None and not fitted.tiled.over_limits
    fitted.save(tmp_path / "out.onnx")
    assert not onnxtile.tile(tmp_path / "out.onnx", target=limits).result.tiled
    assert onnxtile.plan(tmp_path / "out.onnx").plan.arena_size == fitted.after.arena
    assert onnxtile.verify(made, tmp_path / "out.onnx").equal


def test_a_model_that_fits_is_tiled_too(limits: str) -> None:
    fitted = onnxtile.fit(inverted_residuals(9, 8), capacity="1MiB", target=limits)
    assert not fitted.steps and fitted.tiled is not None and fitted.tiled.tiled
    assert not onnxtile.tile(fitted.model, target=limits).result.tiled


@pytest.mark.slow
def test_tiles_that_take_more_bytes_make_the_search_look_for_fewer(tmp_path: Path) -> None:
    net = model(
        "g (float[32,64] x) => (float[32,16] y) { h = MatMul(x, w0) r = Relu(h) y = MatMul(r, w1) }",
        w0=(64, 256),
        w1=(256, 16),
    )
    (tmp_path / "k.toml").write_text("k = 32\n")
    fitted = onnxtile.fit(net, capacity="20KiB", target=str(tmp_path / "k.toml"))
    assert onnxtile.plan(fitted.model).plan.arena_size == fitted.after.arena <= 20 * 1024
    assert fitted.tiled is not None and fitted.tiled.tiled
    assert not onnxtile.tile(fitted.model, target=str(tmp_path / "k.toml")).result.tiled


def test_limits_that_do_not_exist_are_refused() -> None:
    with pytest.raises(onnxtile.UsageError, match=r"nowhere\.toml"):
        onnxtile.fit(inverted_residuals(), capacity="12KiB", target="nowhere.toml")


# fit --functions wrap: each region is a local function, whose body is planned.


@pytest.mark.parametrize(
    ("made", "capacity", "options"),
    [
        (inverted_residuals, "13KiB", {"tolerance": "exact"}),
        pytest.param(quantised, "11.5KiB", {}, marks=pytest.mark.slow),
    ],
)
def test_the_arena_of_regions_in_functions_is_what_plan_says(
    made: Callable[[], onnx.ModelProto], capacity: str, options: dict[str, str], tmp_path: Path
) -> None:
    fitted = fitted_of(made, capacity, functions="wrap", **options)
    assert fitted.arena_verdict is not None and fitted.arena_verdict.equal
    assert fitted.after.arena < fitted.before.arena
    fitted.save(tmp_path / "out.onnx")
    assert onnxtile.plan(tmp_path / "out.onnx").plan.arena_size == fitted.after.arena
    assert onnxtile.verify(made(), tmp_path / "out.onnx").equal


def test_there_is_one_function_for_each_region_and_its_sizes_are_inside(tmp_path: Path) -> None:
    fitted = fitted_of(inverted_residuals, "13KiB", functions="wrap", tolerance="exact")
    fitted.save(tmp_path / "out.onnx")
    written = onnx.load(tmp_path / "out.onnx")
    onnx.checker.check_model(written, full_check=True)
    assert [function.name for function in written.functions] == [f"Region{i}" for i in range(len(fitted.steps))]
    assert [node.op_type for node in written.graph.node if node.domain] == [one.name for one in written.functions]
    inside = [node for function in written.functions for node in function.node]
    sizes = {name for node in inside if node.op_type == "Slice" for name in node.input[1:]}
    assert sizes and sizes <= {name for node in inside if node.op_type == "Constant" for name in node.output}
    assert fitted.after.nodes == len(
        [n for n in (*inside, *written.graph.node) if not n.domain and n.op_type != "Constant"]
    )


def test_bodies_read_the_values_of_their_function() -> None:
    model = onnx.parser.parse_model(
        """<ir_version: 10, opset_import: ["": 17]>
        g (float[4] x, float[4] s, bool c) => (float[4] y, float[4] z) {
            a = Abs(x)  b = Exp(a)
            f = If (c) <then_branch = t () => (float[4] p) { q = Add(a, s)  p = Mul(q, x) },
                        else_branch = n () => (float[4] r) { r = Neg(b) }>
            y = Add(f, b)  z = Neg(b)
        }"""
    )
    wrapped = ir.from_proto(model)
    wrap(wrapped, [list(wrapped.graph)[:4]])
    (function,) = wrapped.functions.values()
    assert [value.name for value in function.inputs] == ["x", "c", "s"]
    assert [value.name for value in function.outputs] == ["b", "y"]
    assert onnxtile.verify(model, ir.to_proto(wrapped)).equal


def test_a_model_that_amplifies_rounding_keeps_its_means(light: Callable[[str], Path]) -> None:
    """All channels before its Softmax are one large number, so that a sum in another order changes the output by as much as it has."""
    fitted = onnxtile.fit(light("squeezenet"), capacity="2MiB", budget="0%")
    assert fitted.fits and fitted.verdict is not None and fitted.verdict.equal
    assert not [step for step in fitted.steps if "sum of strips" in step.text]
