"""Plans over ranges of dimensions: one plan for all sizes, its formulas, and its proof at the corners and between."""

from __future__ import annotations

import io
import re
import shutil
import subprocess
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import onnx.parser
import onnx_ir as ir
import pytest
from rich.console import Console

import onnxtile
from onnxtile.arena.run import at_sizes
from onnxtile.check.audit import check, require
from onnxtile.check.ranges import evaluated, largest, proved_sizes
from onnxtile.model.binding import bind
from onnxtile.model.constants import Constants
from onnxtile.model.formula import SizeRanges, read_sizes
from onnxtile.model.load import load
from onnxtile.planning.model_plan import PlanSettings, plan_model
from onnxtile.planning.ranges import none_fits
from onnxtile.planning.result import PlanResult
from onnxtile.report.plan_tables import for_plan
from onnxtile.shapes.resolve import resolve
from onnxtile.system.errors import CheckFailed, Infeasible, ModelError, ModelWarning, UsageError
from tests.planning.conftest import Case

ATTENTION = """
attention (float[batch, seq, 8] x) => (float[batch, seq, 8] y) <float[8, 8] w = {0.5}> {
  q = MatMul(x, w)
  k = Transpose<perm = [0, 2, 1]>(x)
  scores = MatMul(q, k)
  weights = Softmax(scores)
  mixed = MatMul(weights, x)
  y = Add(mixed, q)
}
""".replace("{0.5}", "{" + ", ".join(["0.5"] * 64) + "}")

EXPANDED = """
expanded (float[batch, 1, seq] mask, float[batch, seq, 4] x) => (float[batch, seq, seq] y) {
  shape = Shape(x)
  zero = Constant<value = int64 {0}>()
  one = Constant<value = int64 {1}>()
  b = Gather(shape, zero)
  s = Gather(shape, one)
  axis = Constant<value = int64[1] {0}>()
  b1 = Unsqueeze(b, axis)
  s1 = Unsqueeze(s, axis)
  any = Constant<value = int64[1] {-1}>()
  wanted = Concat<axis = 0>(b1, any, s1)
  rank = Shape(wanted)
  ones = ConstantOfShape<value = int64[1] {1}>(rank)
  is_any = Equal(wanted, any)
  chosen = Where(is_any, ones, wanted)
  wide = Expand(mask, chosen)
  t = Transpose<perm = [0, 2, 1]>(x)
  scores = MatMul(x, t)
  y = Add(scores, wide)
}
"""

RANGES = {"batch": (1, 3), "seq": (1, 40)}


def parsed(text: str) -> onnx.ModelProto:
    return onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["" : 20]>\n{text}')


def planned(text: str, ranges: dict[str, tuple[int, int]], **options: Any) -> tuple[ir.Model, PlanResult]:
    model = load(parsed(text))
    known = resolve(model, run=True, ranges=ranges)
    return model, plan_model(model, known, Constants(model), PlanSettings(ranges=ranges, **options))


def at(text: str, **sizes: int) -> Case:
    model = load(parsed(text))
    bind(model, sizes, {})
    return Case(model, resolve(model, run=True), Constants(model))


@pytest.mark.parametrize("text", [ATTENTION, EXPANDED])
def test_the_arena_over_a_range_is_as_large_as_at_its_largest_sizes(text: str) -> None:
    _, plan = planned(text, RANGES)
    assert plan.unplanned == ()
    assert plan.arena_size == at(text, batch=3, seq=40).plan().arena_size
    assert plan.arena_size_at({"batch": 3, "seq": 40}) == plan.arena_size


@pytest.mark.parametrize("text", [ATTENTION, EXPANDED])
def test_the_plan_is_sound_at_every_size_with_both_kinds_of_offsets(text: str) -> None:
    ranges = {"batch": (1, 3), "seq": (1, 9)}
    _, plan = planned(text, ranges)
    for sizes in ({"batch": b, "seq": s} for b, s in product(range(1, 4), range(1, 10))):
        case = at(text, **sizes)
        for scaled in (False, True):
            found = at_sizes(plan, sizes, case.model, case.shapes, scaled=scaled)
            require(case.model, found.claims, case.shapes, case.constants)
        assert plan.arena_size_at(sizes) <= plan.arena_size_at(sizes, fixed=True) <= plan.arena_size


def test_scaled_offsets_take_fewer_bytes_at_smaller_sizes() -> None:
    _, plan = planned(ATTENTION, RANGES)
    (formula,) = plan.formulas or ()
    assert formula.peak is not None
    small = {"batch": 1, "seq": 4}
    assert largest(formula.peak, small) <= plan.arena_size_at(small) < plan.arena_size_at(small, fixed=True)


def test_equal_symbols_share_bytes_and_what_may_be_broadcast_does_not() -> None:
    text = """
    g (float[n, 4] x, float[m, 4] z) => (float[n, 4] y, float[k, 4] w) {
      a = Exp(x)
      y = Neg(a)
      b = Exp(z)
      c = Exp(x)
      w = Add(b, c)
    }
    """
    _, plan = planned(text, {"n": (1, 8), "m": (1, 8)})
    rows = {row.name: row for row in plan.buffers}
    assert rows["y"].alias == "a"
    assert rows["w"].alias is None, "n may be 1 where m is 8"


def test_the_check_refuses_overlapping_offsets_at_a_size() -> None:
    _, plan = planned(ATTENTION, RANGES)
    sizes = {"batch": 1, "seq": 40}
    case = at(ATTENTION, **sizes)
    spoiled = replace(
        plan,
        buffers=tuple(
            replace(row, scaled_offset=plan.buffers[0].scaled_offset) if row.name == "scores" else row
            for row in plan.buffers
        ),
    )
    assert plan.buffers[0].name == "q", "it is live with the scores"
    found = at_sizes(spoiled, sizes, case.model, case.shapes, scaled=True)
    assert not check(case.model, found.claims, case.shapes, case.constants).sound


def test_the_check_refuses_a_wrong_formula_of_a_size() -> None:
    _, plan = planned(ATTENTION, RANGES)
    rows = {row.name: row for row in plan.buffers}
    wrong = replace(rows["scores"], size_formula=rows["q"].size_formula)
    spoiled = replace(plan, buffers=tuple(wrong if row.name == "scores" else row for row in plan.buffers))
    case = at(ATTENTION, batch=1, seq=5)
    found = at_sizes(spoiled, {"batch": 1, "seq": 5}, case.model, case.shapes, scaled=False)
    assert not check(case.model, found.claims, case.shapes, case.constants).sound


def test_a_tensor_without_a_formula_is_never_larger_than_in_the_plan() -> None:
    _, plan = planned(ATTENTION, RANGES)
    rows = tuple(replace(row, size_formula="", size=4) if row.name == "scores" else row for row in plan.buffers)
    case = at(ATTENTION, batch=1, seq=5)
    with pytest.raises(CheckFailed, match=r"'scores' has 100 bytes at batch=1 seq=5, more than the 4 of the plan"):
        at_sizes(replace(plan, buffers=rows), {"batch": 1, "seq": 5}, case.model, case.shapes, scaled=False)


def test_the_proof_is_at_all_corners_and_five_sizes_between() -> None:
    found = proved_sizes({"batch": (1, 8), "seq": (1, 512)})
    assert found[:4] == [{"batch": b, "seq": s} for b in (8, 1) for s in (512, 1)]
    assert len(found) == 9
    assert len({tuple(sizes.values()) for sizes in found}) == 9
    assert all(1 < sizes["batch"] < 8 and 1 < sizes["seq"] < 512 for sizes in found[4:])


def test_the_proof_of_a_small_range_is_at_all_its_sizes() -> None:
    assert sorted(sizes["n"] for sizes in proved_sizes({"n": (3, 6)})) == [3, 4, 5, 6]


def test_progress_counts_the_sizes_of_the_proof() -> None:
    stages: dict[str, None] = {}
    onnxtile.plan(
        parsed(ATTENTION), dims={"batch": 1, "seq": "1:3"}, progress=lambda stage, *_: stages.setdefault(stage)
    )
    assert [stage for stage in stages if stage.endswith("checking the plan")] == [
        f"size {number} of 3, seq={size}: checking the plan" for number, size in enumerate((3, 1, 2), 1)
    ]
    assert "size 3 of 3, seq=2: running inside the arena" in stages


def test_plan_runs_the_model_at_each_of_these_sizes() -> None:
    found = onnxtile.plan(parsed(ATTENTION), dims={"batch": (1, 3), "seq": "1:40"})
    assert found.verdict is not None
    told = found.verdict.to_dict()
    assert told["equal"]
    assert told["sizes"] == proved_sizes(RANGES)
    assert told["runs"] == 10, "with fixed offsets at the largest sizes, too"
    document = found.to_dict()
    assert document["ranges"] == {"batch": [1, 3], "seq": [1, 40]}
    assert document["dims"] == {"batch": 3, "seq": 40}
    (row,) = [row for row in document["buffers"] if row["name"] == "scores"]
    assert row["size_formula"] == "4*batch*seq**2"
    assert row["shape_formula"] == ["batch", "seq", "seq"]
    arena = document["formulas"][0]
    assert eval(arena["scaled"]["bytes"], {"max": max}, {"batch": 2, "seq": 7}) == found.plan.arena_size_at(
        {"batch": 2, "seq": 7}
    )


CACHE = """
cache (float[1, past, 8] keys, float[1, new, 8] x, float[1, 1, "past + new"] mask) => (float[1, a, b] y, float[1, c, 8] present) {
  present = Concat<axis = 1>(keys, x)
  t = Transpose<perm = [0, 2, 1]>(present)
  scores = MatMul(x, t)
  masked = Add(scores, mask)
  y = Softmax(masked)
}
"""


def test_a_dimension_of_an_input_may_be_an_expression_of_others() -> None:
    """The mask of a decoder is as long as its cache and the new tokens; so the mask is added over the scores."""
    proto = parsed(CACHE.replace('"past + new"', "total"))
    proto.graph.input[2].type.tensor_type.shape.dim[2].dim_param = "past + new"
    found = onnxtile.plan(proto, dims={"past": (1, 64), "new": (1, 4)})
    assert found.plan.unplanned == ()
    rows = {row.name: row for row in found.plan.buffers}
    assert str(rows["masked"].size_formula) == "4*new**2 + 4*new*past"
    assert rows["masked"].alias == "scores"


def test_a_name_that_no_formula_can_have_gets_underscores() -> None:
    proto = parsed("g (float[n, 8] x) => (float[n, 8] y) { a = Exp(x) y = Neg(a) }")
    for value in (proto.graph.input[0], proto.graph.output[0]):
        value.type.tensor_type.shape.dim[0].dim_param = "net.batch-size"
    found = onnxtile.plan(proto, dims={"net.batch-size": (1, 4)})
    assert found.plan.ranges == {"net_batch_size": (1, 4)}
    assert found.plan.dims == {"net.batch-size": 4}
    assert str(found.plan.buffers[0].size_formula) == "32*net_batch_size"
    assert found.model.graph.inputs[0].shape == ["net.batch-size", 8]
    formulas = onnxtile.inspect(proto, dims={"net.batch-size": (1, 4)}).formulas
    assert formulas is not None
    assert str(formulas.activations.total) == "64*net_batch_size"


def test_every_dimension_of_an_input_has_a_size_or_a_range() -> None:
    with pytest.raises(ModelError, match=r"sizes of inputs are not known: 'x' \[batch, seq, 8\]"):
        onnxtile.plan(parsed(ATTENTION), dims={"batch": (1, 3)})


def test_a_tensor_without_a_formula_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "onnxtile.shapes.resolve.read_sizes",
        lambda dims, ranges: None if dims == ("batch", "seq", "seq") else read_sizes(dims, ranges),
    )
    monkeypatch.setattr("onnxtile.shapes.resolve.Propagation.run", lambda _, **__: None)
    with pytest.raises(ModelError, match="the size of 'scores' over the ranges is not known"):
        onnxtile.plan(parsed(ATTENTION), dims={"batch": (1, 3), "seq": (1, 4)})


def test_a_range_goes_with_fixed_sizes_of_other_dimensions() -> None:
    found = onnxtile.plan(parsed(ATTENTION), dims={"batch": 2, "seq": (1, 8)}, verify=False).plan
    assert found.ranges == {"seq": (1, 8)}
    assert found.dims == {"batch": 2, "seq": 8}


def test_a_range_goes_with_the_bound_of_a_data_dependent_dimension() -> None:
    text = "g (float[n, 6] x) => (float[n, 6] y, float[2, k] z) { y = Exp(x) i = NonZero(x) z = Cast<to = 1>(i) }"
    found = onnxtile.plan(parsed(text), dims={"n": (1, 4), "i": ":24"})
    assert found.plan.unplanned == ()
    assert found.verdict is not None and found.verdict.equal


@pytest.mark.parametrize(
    ("sizes", "reason"),
    [
        ({"batch": 1}, "the size of 'seq' is missing"),
        ({"batch": 4, "seq": 1}, "the size 4 of 'batch' is out of its range"),
        ({"batch": 1, "seq": 1, "x": 1}, "no range of a dimension 'x'"),
    ],
)
def test_the_size_of_the_arena_is_known_in_the_ranges(sizes: dict[str, int], reason: str) -> None:
    _, plan = planned(ATTENTION, RANGES)
    with pytest.raises(UsageError, match=reason):
        plan.arena_size_at(sizes)


def test_a_capacity_for_a_range_is_met_or_not() -> None:
    dims = {"batch": (1, 8), "seq": (1, 512)}
    assert onnxtile.plan(parsed(ATTENTION), dims=dims, capacity=8_650_752, verify=False).plan.arena_size == 8_650_752
    with pytest.raises(Infeasible, match="DOES NOT FIT: at batch=1 seq=505, the smallest sizes without a plan"):
        onnxtile.plan(parsed(ATTENTION), dims=dims, capacity="1MiB", verify=False)


FOLDED = """
folded (float[batch,seq] x) => (float[batch,seq] y)
  <int64[1] zero = {0}, int64[1] five = {5}, int64[1] three = {3}> {
  whole = Shape(x)
  two = Mod(five, three)
  shape = Slice(whole, zero, two)
  a = Reshape(x, shape)
  b = Exp(a)
  y = Softmax(b)
}
"""


def test_where_a_size_has_no_formula_plans_are_made_for_smaller_ranges() -> None:
    """`b` has its largest size in the plan of the whole range, so that formulas would refuse the least sizes as well."""
    dims = {"batch": (1, 8), "seq": (1, 64)}
    free = onnxtile.plan(parsed(FOLDED), dims=dims, verify=False).plan
    with pytest.raises(Infeasible, match="DOES NOT FIT: at batch=5 seq=52, the smallest sizes without a plan"):
        onnxtile.plan(parsed(FOLDED), dims=dims, capacity=1024, verify=False)
    assert (
        free.arena_size == onnxtile.plan(parsed(FOLDED), dims=dims, capacity=8 * 64 * 4, verify=False).plan.arena_size
    )


def test_sizes_that_are_named_have_no_plan_of_their_own() -> None:
    """Each dimension is as small as the others allow, in their order."""
    refused = Infeasible("too large")
    ranges = {"batch": (1, 8), "seq": (1, 512)}

    def refusal(ranges: SizeRanges) -> Infeasible | None:
        (_, batch), (_, seq) = ranges.values()
        return refused if batch * seq > 510 else None

    assert str(none_fits(ranges, refusal, refused)).startswith(
        "DOES NOT FIT: at batch=1 seq=511, the smallest sizes without a plan, too large"
    )


def test_of_several_memories_each_has_its_own_limit() -> None:
    """The plan of the least sizes that are refused is refused alone, too, and that of the sizes below it is not."""
    memories = {"sram": "256KiB", "dram": "256KiB"}
    with pytest.raises(
        Infeasible, match=r"DOES NOT FIT: at batch=1 seq=(\d+), the smallest sizes .* 'dram' needs"
    ) as told:
        onnxtile.plan(parsed(ATTENTION), dims={"batch": (1, 8), "seq": (1, 512)}, capacity=memories, verify=False)
    found = re.search(r"seq=(\d+)", str(told.value))
    assert found is not None
    size = int(found[1])
    with pytest.raises(Infeasible):
        onnxtile.plan(parsed(ATTENTION), dims={"batch": 1, "seq": size}, capacity=memories, verify=False)
    onnxtile.plan(parsed(ATTENTION), dims={"batch": 1, "seq": size - 1}, capacity=memories, verify=False)


def test_inputs_from_a_file_have_one_size() -> None:
    with pytest.raises(UsageError, match="not a range"):
        onnxtile.plan(parsed(ATTENTION), dims={"batch": (1, 8)}, inputs="x.npz")


@pytest.mark.parametrize(
    ("dims", "reason"),
    [
        ({"batch": (8, 1)}, "the range is empty"),
        ({"batch": "0:8", "seq": 8}, "at least 1"),
        ({"batch": (-1, 8)}, "at least 1"),
        ({"batch": (1, 2, 3)}, "two ends"),
        ({"btch": (1, 8)}, "no dimension 'btch'"),
    ],
)
def test_ranges_that_make_no_sense_are_refused(dims: dict[str, Any], reason: str) -> None:
    with pytest.raises(UsageError, match=reason):
        onnxtile.plan(parsed(ATTENTION), dims=dims)
    with pytest.raises(UsageError, match=reason):
        onnxtile.inspect(parsed(ATTENTION), dims=dims)


def test_verbs_that_need_one_size_refuse_a_range() -> None:
    with pytest.raises(UsageError, match="a range of sizes is for plan and inspect: batch=1:8"):
        onnxtile.tile(parsed(ATTENTION), max=4, dims={"batch": (1, 8)})


@pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler")
def test_the_header_has_macros_for_all_sizes(tmp_path: Path) -> None:
    found = onnxtile.plan(parsed(ATTENTION), dims=RANGES, verify=False)
    found.write(tmp_path / "net.h")
    told = "NET_ARENA_SIZE(2, 7), NET_T_k_OFFSET_AT(3, 9), NET_T_scores_SIZE_AT(1, 5)"
    source = f'#include <stdio.h>\n#include "net.h"\nint main(void) {{ printf("%zu %zu %zu", {told}); }}'
    (tmp_path / "main.c").write_text(source)
    command = ["cc", "-std=c99", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "main.c", "-o", "main"]
    subprocess.run(command, cwd=tmp_path, check=True)
    told = subprocess.run([tmp_path / "main"], capture_output=True, text=True, check=True).stdout
    rows = {row.name: row for row in found.plan.buffers}
    wanted = (
        found.plan.arena_size_at({"batch": 2, "seq": 7}),
        evaluated(rows["k"].scaled_offset, {"batch": 3, "seq": 9}),
        100,
    )
    assert told == " ".join(map(str, wanted))


def test_the_report_says_the_formula_and_the_sizes_of_the_runs() -> None:
    found = onnxtile.plan(parsed(ATTENTION), dims={"batch": (1, 3), "seq": (1, 9)}, capacity="1MiB")
    printed = "\n".join(texts(for_plan(found.to_dict())))
    assert "all of batch 1 to 3, seq 1 to 9" in printed
    assert "FITS at all sizes" in printed
    assert "128·((batch·seq + 1) // 2) + 64·((batch·seq² + 15) // 16)" in printed
    assert "sizes of the runs: batch=3 seq=9, batch=3 seq=1" in printed


def texts(tables: list[Any]) -> list[str]:
    file = io.StringIO()
    console = Console(width=200, file=file)
    for one in tables:
        console.print(one)
    return file.getvalue().splitlines()


IN_WORKSPACES = {
    "function": (
        "g (float[N, 5] x) => (float[N, 5] z) { a = Neg(x) b = local.f(a) z = Neg(b) }"
        '<domain: "local", opset_import: ["": 22]> f (v1) => (v3) { v2 = Sigmoid(v1) v3 = Neg(v2) }'
    ),
    "If": """g (float[N, 5] x, float[100] w, bool c) => (float[N, 5] z, float[100] y) {
      a = Neg(x) z = Neg(a)
      y = If(c) <then_branch = t () => (float[100] b2) { b1 = Neg(w) b2 = Exp(b1) },
                else_branch = e () => (float[100] b2) { b2 = Exp(w) }> }""",
}
"""Bodies in workspaces, whose offsets scale with N."""


@pytest.mark.parametrize("text", IN_WORKSPACES.values(), ids=IN_WORKSPACES)
def test_the_offsets_of_bodies_scale_with_those_of_their_workspaces(text: str) -> None:
    model = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["": 22, "local": 1]>\n{text}')
    result = onnxtile.plan(model, dims={"N": "1:64"}, search="greedy-by-size", order="model", io="inside")
    assert result.verdict is not None and result.verdict.equal
    assert any(arena.scaled is not None for arena in result.plan.formulas or ())
    workspace = next(row for row in result.plan.buffers if row.kind == "workspace")
    for row in result.plan.bodies[0].buffers:
        for size in (1, 7, 64):
            distance = evaluated(row.scaled_offset, {"N": size}) - evaluated(workspace.scaled_offset, {"N": size})
            assert distance == row.offset - workspace.offset


def test_equal_names_in_sibling_bodies_have_the_sizes_of_their_own() -> None:
    """No formula says the size of `b` in the first branch, which reads the result of a Loop."""
    text = """g (float[2, 3] w, float[N, 4] x, bool c) => (float[N, 4] z) <int64 one = {1}, bool go = {1}> {
      v = Loop(one, go, w) <body = l (int64 i, bool on, float[2, 3] a) => (bool on, float[] d) { d = Neg(a) }>
      z = If(c) <then_branch = t () => (float[N, 4] d) { b = Add(v, w) d = Neg(x) },
                else_branch = f () => (float[N, 4] d) { b = Neg(x) d = Exp(b) }> }"""
    model = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["": 22]>\n{text}')
    result = onnxtile.plan(model, dims={"N": "1:64"}, search="greedy-by-size")
    assert result.verdict is not None and result.verdict.equal


def test_a_buffer_whose_parts_lie_elsewhere_at_smaller_sizes_is_sound_there() -> None:
    """The first operand of a Concat is in its result; what follows it begins at another byte at each size."""
    case = """<ir_version: 10, opset_import: ["" : 20]> g (float[N, 16] x) => (float[M, N] y) {
        a = Transpose <perm = [1, 0]> (x)  t = Exp (a)  u = Softmax <axis = 0> (t)
        w = ReduceSum (u)  p = Add (a, w)  q = Softmax <axis = 0> (p)  z = Concat <axis = 0> (a, q, q)  y = Neg (z)
    }"""
    planned = onnxtile.plan(onnx.parser.parse_model(case), dims={"N": "1:6"})
    assert [buffer.name for buffer in planned.plan.buffers if buffer.parts] == ["z"]
    assert planned.verdict is not None and planned.verdict.equal


@pytest.mark.filterwarnings("ignore:the model declares the output")
def test_a_size_that_the_file_declares_wrongly_counts_for_none_of_a_range() -> None:
    case = """<ir_version: 10, opset_import: ["" : 20]> g (float[N, 16] x) => (float[M, 16] y) {
        a = Transpose <perm = [1, 0]> (x)  z = Concat <axis = 0> (a, a)  y = Neg (z)
    }"""
    planned = onnxtile.plan(onnx.parser.parse_model(case), dims={"N": "1:20"})
    assert planned.plan.arena_size == 2 * 16 * 20 * 4
    assert planned.verdict is not None and planned.verdict.equal


def test_scaled_offsets_are_aligned_to_the_elements_at_an_alignment_below_these() -> None:
    text = """
    g (float[n] x, int64[m] i) => (int64[m] y, float[n] z) <int64 k = {0}> {
      a = Neg(x)
      b = Neg(i)
      c = Softmax(a)
      d = CumSum(b, k)
      z = Softmax(c)
      y = CumSum(d, k)
    }
    """
    for alignment, order in product((1, 2, 4, 8), ("auto", "model")):
        ranges = {"n": (1, 64), "m": (1, 9)}
        found = onnxtile.plan(parsed(text), dims=ranges, alignment=alignment, order=order, verify=False).plan
        assert found.arena_size_at({"n": 64, "m": 9}) == found.arena_size
        for row, n in product(found.buffers, range(1, 65)):
            assert evaluated(row.scaled_offset, {"n": n, "m": 3}) % (8 if row.dtype == "int64" else 4) == 0


CACHED = """
cached (float[batch, new, 4] x, float[rows, old, 4] key, float[rows, other, 4] value, float[b, total] mask)
  => (float[batch, new, 4] y) {
  keys = Concat<axis = 1>(key, x)
  values = Concat<axis = 1>(value, x)
  turned = Transpose<perm = [0, 2, 1]>(keys)
  scores = MatMul(x, turned)
  masked = Add(scores, mask)
  weights = Softmax(masked)
  y = MatMul(weights, values)
}
"""


def test_dimensions_without_a_size_are_those_that_operators_join_them_with() -> None:
    """The mask has a length of its own name, and so have keys and values; their batch must be that of the token."""
    text = CACHED.replace("float[b, total]", "float[total]")
    with pytest.warns(ModelWarning, match=r"rows = batch, total = new \+ old, other = old"):
        found = onnxtile.plan(parsed(text), dims={"batch": (1, 2), "new": (1, 3), "old": (1, 5)})
    assert found.verdict is not None and found.verdict.equal
    assert found.plan.ranges == {"batch": (1, 2), "new": (1, 3), "old": (1, 5)}
    assert found.plan.dims == {"batch": 2, "new": 3, "old": 5, "rows": 2, "other": 5, "total": 8}


def test_a_dimension_may_be_equal_to_one_other() -> None:
    text = CACHED.replace("float[b, total]", "float[total]")
    dims: dict[str, Any] = {"batch": (1, 2), "rows": "batch", "new": 1, "old": (1, 5), "other": "old", "total": "old+1"}
    found = onnxtile.plan(parsed(text), dims=dims, verify=False).plan
    assert found.ranges == {"batch": (1, 2), "old": (1, 5)}
    assert found.dims["other"] == 5
    with pytest.raises(UsageError, match="depends on 'olt', which has no size"):
        onnxtile.plan(parsed(text), dims={**dims, "other": "olt"}, verify=False)


def test_a_slice_from_the_length_of_the_cache_has_the_sizes_of_what_is_new() -> None:
    """Exporters cut the positions of new tokens off those of all tokens; without a formula, what follows is open or at its largest."""
    text = """
    g (int64[batch, total] places, float[batch, old, 4] key, float[batch, new, 4] x) => (float[batch, new, 4] y)
      <int64 one = {1}, int64[1] zero = {0}, int64[1] last = {9223372036854775807}, int64[1] axis = {1}, float[64, 4] w> {
      sizes = Shape(key)
      length = Gather<axis = 0>(sizes, one)
      begin = Unsqueeze(length, zero)
      part = Slice(places, begin, last, axis)
      vectors = Gather(w, part)
      y = Add(vectors, x)
    }
    """.replace("float[64, 4] w>", "float[64, 4] w = {" + ", ".join(["0"] * 256) + "}>")
    dims: dict[str, Any] = {"batch": (1, 2), "old": (1, 9), "new": (1, 3), "total": "old+new"}
    found = onnxtile.plan(parsed(text), dims=dims).plan
    sizes = {row.name: str(row.size_formula) for row in found.buffers}
    assert sizes["part"] == "8*batch*new"
    assert sizes["vectors"] == "16*batch*new"
    only = onnxtile.plan(parsed(text), dims={**dims, "batch": 1, "new": 1, "total": "old+1"}).plan
    assert {row.name: str(row.size_formula) for row in only.buffers}["part"] == "8"


@pytest.mark.parametrize("shape", ["2x(1:9)x4", (2, (1, 9), 4), "2x1:9x4"])
def test_a_dimension_without_a_name_gets_a_range_in_the_shape_of_its_input(shape: Any) -> None:
    text = "g (float[2, ?, 4] x, float[n] z) => (float[2, ?, 4] y, float[n] w) { a = Exp(x) y = Softmax(a) w = Neg(z) }"
    found = onnxtile.plan(parsed(text), shapes={"x": shape}, dims={"n": (1, 3)})
    assert found.plan.ranges == {"n": (1, 3), "x_1": (1, 9)}
    assert found.verdict is not None and found.verdict.equal
    assert {str(row.size_formula) for row in found.plan.buffers} == {"32*x_1", "4*n"}
    assert onnxtile.inspect(parsed(text), shapes={"x": shape}, dims={"n": (1, 3)}).to_dict()


@pytest.mark.parametrize(
    ("shapes", "dims", "reason"),
    [
        ({"x": "2x(1:9)"}, {}, "the input 'x' has 3 dimensions, not 2"),
        ({"y": "2x(1:9)"}, {}, "no input 'y'"),
        ({"x": "2x(1:9)x4", "z": "(1:2)"}, {"n": (1, 3)}, "the dimension 'n' has two sizes"),
        ({"x": "2x(9:1)x4"}, {}, "the range is empty"),
    ],
)
def test_ranges_in_shapes_that_make_no_sense_are_refused(
    shapes: dict[str, str], dims: dict[str, Any], reason: str
) -> None:
    text = "g (float[2, ?, 4] x, float[n] z) => (float[2, ?, 4] y, float[n] w) { y = Exp(x) w = Neg(z) }"
    with pytest.raises(UsageError, match=reason):
        onnxtile.plan(parsed(text), shapes=shapes, dims=dims)
    with pytest.raises(UsageError, match="a range of sizes is for plan and inspect"):
        onnxtile.tile(parsed(text), max=8, shapes={"x": "2x(1:9)x4"})


POOLED = """
pooled (float[1, 3, h, w] x) => (float[1, 4, a, b] y) <float[4, 3, 3, 3] filter = {0.5}> {
  c = Conv(x, filter)
  y = MaxPool<kernel_shape = [2, 2], strides = [2, 2]>(c)
}
""".replace("{0.5}", "{" + ", ".join(["0.5"] * 108) + "}")


@pytest.mark.parametrize(
    ("dims", "reason", "hint"),
    [
        ({"h": "1:8", "w": 8}, r"'c' \(Conv\) has no result at h=1:.* axis 2", "begin the range of 'h' with 4"),
        ({"h": "3:8", "w": 8}, r"'y' \(MaxPool\) has no result at h=3:.* axis 2", "begin the range of 'h' with 4"),
        ({"h": "9:9", "w": "1:2"}, r"'c' \(Conv\) has no result at w=1:.* axis 3", "begin the range of 'w' with 4"),
        ({"h": "2:8", "w": "3:8"}, r"at h=2:.* axis 2", "begin the range of 'h' with 4, of 'w' with 4"),
        ({"h": "4:8", "w": 2}, r"'c' \(Conv\) has no result: .* axis 3", "make the sizes larger"),
    ],
)
def test_a_range_with_sizes_at_which_a_window_has_no_room_is_refused(
    dims: dict[str, Any], reason: str, hint: str
) -> None:
    for command in (onnxtile.plan, onnxtile.inspect):
        with pytest.raises(UsageError, match=reason) as refused:
            command(parsed(POOLED), dims=dims)
        assert refused.value.hint == hint


def test_a_range_from_the_least_size_with_a_window_is_planned_and_run() -> None:
    made = onnxtile.plan(parsed(POOLED), dims={"h": "4:8", "w": "4:5"})
    assert made.verdict is not None and made.verdict.equal
    (row,) = (row for row in made.to_dict()["buffers"] if row["name"] == "y")
    assert row["shape_formula"] == ["1", "4", "((h) // 2) - 1", "((w) // 2) - 1"]
