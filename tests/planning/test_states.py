"""States in place: inputs and outputs that are one tensor, in one arena over many runs."""

from __future__ import annotations

import io
import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import onnx.parser
import pytest
from rich.console import Console

import onnxtile
from onnxtile import cli
from onnxtile.arena.run import ArenaExecutor, same_plan, state_run
from onnxtile.kernels.from_onnx import StateChoice, matching_names
from onnxtile.model.feeds import ANYTHING
from onnxtile.pipeline.file import Destination, from_file
from onnxtile.pipeline.run import run_one
from onnxtile.planning.result import KeptState, ListedState, PlanResult
from onnxtile.report.plan_tables import for_plan
from onnxtile.shapes.opened_calls import Unfolded
from onnxtile.system.errors import CheckFailed, ModelError, UsageError
from tests.planning.conftest import Case, rows

SCATTER = """
cache (float[1, 64, 128] past, float[1, 1, 128] x, int64[1] at) => (float[1, 64, 128] present, float[1, 1, 128] y) {
  present = TensorScatter <axis = 1> (past, x, at)
  y = ReduceMax <keepdims = 1> (present, one)
}
"""
GROWING = """
cache (float[1, HEADS, past, 16] past_k, float[1, HEADS, 1, 16] x) => (float[1, HEADS, total, 16] present_k, float[1, HEADS, 1, 16] y) {
  present_k = Concat <axis = 2> (past_k, x)
  t = Transpose <perm = [0, 1, 3, 2]> (present_k)
  scores = MatMul(x, t)
  w = Softmax(scores)
  y = MatMul(w, present_k)
}
"""
FADED = """
cell (float[4, 4] h0, float[4, 4] x) => (float[4, 4] hn) {
  a = MatMul(h0, x)
  b = MatMul(a, a)
  hn = MatMul(a, b)
}
"""
SAME_STEP = """
cell (float[4, 4] h0, float[4, 4] x) => (float[4, 4] hn) {
  a = MatMul(x, x)
  hn = MatMul(a, h0)
}
"""


def model(text: str, opset: int = 24, heads: int = 1, **constants: Any) -> onnx.ModelProto:
    """Return a model of ONNX text; `constants` become initializers."""
    domains = f'"" : {opset}, "com.microsoft" : 1'
    found = onnx.parser.parse_model(f"<ir_version: 10, opset_import: [{domains}]>\n{text.replace('HEADS', str(heads))}")
    found.graph.initializer.extend(onnx.numpy_helper.from_array(np.asarray(v), name) for name, v in constants.items())
    return found


def scatter() -> onnx.ModelProto:
    return model(SCATTER, one=np.array([1], np.int64))


def planned(source: onnx.ModelProto, **options: Any) -> Any:
    return onnxtile.plan(source, **options)


def state(result: PlanResult) -> KeptState:
    (found,) = result.states
    return found


def test_a_scatter_cache_takes_its_bytes_once() -> None:
    apart = planned(scatter(), io="inside", verify=False).plan
    kept = planned(scatter(), state={"past": "present"})
    assert apart.arena_size == 2 * 32768 + 2 * 512 + 64
    assert kept.plan.arena_size == 32768 + 512
    assert state(kept.plan) == KeptState("past", "present", "arena", 0, 32768, 0, axis=None, source="given")
    assert (kept.verdict.equal, kept.verdict.runs, kept.verdict.copied) == (True, 64, 0)


@pytest.mark.parametrize("heads", [1, 4])
def test_a_growing_cache_has_one_place_for_all_lengths(heads: int) -> None:
    source = model(GROWING, heads=heads)
    fixed = planned(source, dims={"past": 63}, state="found", verify=False).plan
    ranged = planned(source, dims={"past": (0, 63)}, state="found", verify=False).plan
    bounded = planned(source, dims={"past": ":63"}, state="found", verify=False).plan
    size = heads * 64 * 16 * 4
    # The cache, its transposed copy, and the scores.
    assert fixed.arena_size == ranged.arena_size == bounded.arena_size == 2 * size + heads * 256
    for result in (fixed, ranged, bounded):
        assert (state(result).size, state(result).copied) == (size, 0)
        assert rows(result)["past_k"].offset == rows(result)["present_k"].offset
    assert state(fixed).strides == state(ranged).strides == state(bounded).strides == (size, 64 * 64, 64, 4)
    assert fixed.copies == ranged.copies


def test_a_cache_of_one_row_is_joined_without_a_copy() -> None:
    result = planned(model(GROWING), dims={"past": (0, 63)}, state="found", verify=False).plan
    assert (result.copies.avoided_bytes, result.copies.remaining_bytes) == (63 * 64, 64)


@pytest.mark.parametrize("heads", [1, 2])
def test_runs_of_a_growing_cache_follow_each_other(heads: int) -> None:
    verdict = planned(model(GROWING, heads=heads), dims={"past": (0, 5)}, state="found").verdict
    assert verdict.equal
    assert verdict.state.sizes == tuple({"past": length} for length in range(6))
    few = planned(model(GROWING, heads=heads), dims={"past": (0, 5)}, state="found", runs=3).verdict
    assert few.runs == 3


def test_a_state_keeps_its_largest_size_at_all_lengths() -> None:
    result = planned(model(GROWING, heads=4), dims={"past": (0, 63)}, state="found", verify=False).plan
    assert result.arena_size_at({"past": 0}) >= 4 * 64 * 64
    assert result.formulas[0].peak is None
    assert result.formulas[0].scaled is None


def test_an_output_takes_the_address_of_an_input_that_is_dead() -> None:
    found = planned(model(FADED), state="found")
    assert state(found.plan).copied == 0
    assert rows(found.plan)["h0"].offset == rows(found.plan)["hn"].offset
    assert found.verdict.runs == 64


def test_an_output_that_cannot_is_copied_after_each_run() -> None:
    found = planned(model(SAME_STEP), state={"h0": "hn"}, runs=5)
    assert (state(found.plan).copied, found.verdict.copied, found.verdict.runs) == (64, (5 + 2) * 64, 5)
    assert rows(found.plan)["h0"].offset != rows(found.plan)["hn"].offset


def test_the_bytes_of_a_state_are_held_in_all_steps() -> None:
    found = planned(model(FADED), state="found", verify=False).plan
    assert (rows(found)["h0"].first, rows(found)["h0"].last) == (0, 2)
    copied = planned(model(SAME_STEP), state="found", verify=False).plan
    assert (rows(copied)["h0"].first, rows(copied)["h0"].last) == (0, 1)


def test_found_states_are_listed_and_not_taken() -> None:
    plain = planned(scatter(), verify=False).plan
    assert plain.listed == (ListedState("past", "present", "operator"),)
    assert plain.arena_size == planned(scatter(), verify=False, state="none").plan.arena_size
    assert planned(scatter(), verify=False, state="none").plan.states == ()
    assert "states" not in planned(scatter(), verify=False, state="none").plan.to_dict()


NAMES = {
    "past_key_values.0.key": "present.0.key",
    "past_key_values.11.decoder.value": "present.11.decoder.value",
    "past_k": "present_k",
    "cache_in": "cache_out",
    "h0": "hn",
    "state": "stateN",
    "conv_cache": "conv_cache_out",
    "PrevHidden": "NextHidden",
    "past_0": "present_0",
    "prev_hidden": "hidden",
    "hx": "hy",
    "r1i": "r1o",
    "att_cache": "r_att_cache",
    "cache_last_channel": "cache_last_channel_next",
    "last_hidden_in": "last_hidden_out",
    "past_key_values_key_cache_0": "past_key_values_key_cache_0_out",
    "past_ssm_states.3": "present_ssm_states.3",
}


@pytest.mark.parametrize(("before", "after"), NAMES.items())
def test_names_of_states(before: str, after: str) -> None:
    assert list(matching_names(["x", before, "mask"], ["y", after, "logits"])) == [(before, after)]


def test_names_of_no_states() -> None:
    assert list(matching_names(["input", "input_1", "x", "past"], ["output", "output_1", "y", "present"])) == []
    assert list(matching_names(["past_k", "prev_k"], ["present_k"])) == []
    assert list(matching_names(["hidden_states", "_", "i"], ["last_hidden_state", "__", "o"])) == []
    assert list(matching_names(["input_0", "in", "last_0"], ["output_0", "out", "0"])) == []


def test_a_concat_of_one_operand_makes_no_difference() -> None:
    joined = "Concat <axis = 2> (past_k, x)"
    text = GROWING.replace(
        f"present_k = {joined}", "p = Concat <axis = 2> (past_k)\n  present_k = Concat <axis = 2> (p, x)"
    )
    found = planned(model(text, heads=2), dims={"past": (0, 3)}, state="found")
    assert state(found.plan).copied == 0
    assert (
        found.plan.arena_size == planned(model(GROWING, heads=2), dims={"past": (0, 3)}, state="found").plan.arena_size
    )
    assert found.verdict.equal
    fixed = planned(
        model("g (float[2, 3] x) => (float[2, 3] y) { a = Exp(x) b = Concat <axis = 1> (a) y = Neg(b) }", 20)
    )
    assert (fixed.plan.arena_size, fixed.plan.copies.remaining, fixed.verdict.views) == (64, 0, 1)


ATTENTION = """
step (float[1, 4, 1, 16] q, float[1, 4, 1, 16] k, float[1, 4, 1, 16] v, float[1, 4, past, 16] past_k, float[1, 4, past, 16] past_v)
  => (float[1, 4, 1, 16] y, float[1, 4, total, 16] present_k, float[1, 4, total, 16] present_v) {
  y, present_k, present_v = Attention(q, k, v, , past_k, past_v)
}
"""
MULTI_HEAD = """
step (float[1, 1, 64] q, float[1, 1, 64] k, float[1, 1, 64] v, float[1, 4, past, 16] past_k, float[1, 4, past, 16] past_v)
  => (float[1, 1, 64] y, float[1, 4, total, 16] present_k, float[1, 4, total, 16] present_v) {
  y, present_k, present_v = com.microsoft.MultiHeadAttention <num_heads = 4> (q, k, v, , , , past_k, past_v)
}
"""
GROUPED = """
step (float[1, 1, 64] q, float[1, 1, 32] k, float[1, 1, 32] v, float[1, 2, 8, 16] past_k, float[1, 2, 8, 16] past_v,
  int32[1] lens, int32 total)
  => (float[1, 1, 64] y, float[1, 2, 8, 16] present_k, float[1, 2, 8, 16] present_v) {
  y, present_k, present_v = com.microsoft.GroupQueryAttention <num_heads = 4, kv_num_heads = 2> (q, k, v, past_k, past_v, lens, total)
}
"""


@pytest.mark.parametrize("text", [ATTENTION, MULTI_HEAD], ids=["Attention", "MultiHeadAttention"])
def test_attention_appends_to_its_past(text: str) -> None:
    found = planned(model(text), dims={"past": (1, 4)}, state="found")
    assert [(s.source, s.axis, s.size, s.copied) for s in found.plan.states] == [("operator", 2, 4 * 5 * 64, 0)] * 2
    assert (found.verdict.equal, found.verdict.runs) == (True, 4)


def test_grouped_attention_writes_into_its_past() -> None:
    found = planned(model(GROUPED, 20), inputs={"lens": (5, 5), "total": (6, 6)}, state="found", runs=4)
    assert [(s.axis, s.size, s.copied, s.strides) for s in found.plan.states] == [(None, 1024, 0, None)] * 2
    assert found.plan.arena_size == 2 * 1024 + 256
    assert found.verdict.equal


LSTM = """
step (float[1, 1, 8] x, float[1, 1, 16] first_h, float[1, 1, 16] first_c, float[1, 64, 8] w, float[1, 64, 16] r)
  => (float[1, 1, 1, 16] y, float[1, 1, 16] last_hidden, float[1, 1, 16] last_cell) {
  y, last_hidden, last_cell = LSTM <hidden_size = 16> (x, w, r, , , first_h, first_c)
}
"""


def test_an_lstm_has_two_states() -> None:
    found = planned(model(LSTM, 20), state="found", runs=3)
    assert {(s.input, s.output, s.copied) for s in found.plan.states} == {
        ("first_h", "last_hidden", 0),
        ("first_c", "last_cell", 0),
    }
    assert rows(found.plan)["first_h"].offset == rows(found.plan)["last_hidden"].offset
    assert found.plan.arena_size == 3 * 64
    assert found.verdict.equal


RECURRENT = """
step (float[3, 5, 8] x, float[2, 5, 33] h0) => (float[3, 2, 5, 33] y, float[2, 5, 33] hn) {
  y, hn = OPERATOR <hidden_size = 33, direction = "bidirectional", linear_before_reset = BEFORE> (x, w, r, , lens, h0)
}
"""


@pytest.mark.parametrize(("operator", "gates"), [("GRU", 3), ("RNN", 1)])
@pytest.mark.parametrize("before", [0, 1])
def test_the_last_state_of_both_directions_takes_the_place_of_the_first(operator: str, gates: int, before: int) -> None:
    text = RECURRENT.replace("OPERATOR", operator).replace("BEFORE", str(before))
    text = text if operator == "GRU" else text.replace(f", linear_before_reset = {before}", "")
    draws = np.random.default_rng(0)
    weights: dict[str, Any] = {
        name: draws.normal(size=(2, gates * 33, size)).astype(np.float32) for name, size in (("w", 8), ("r", 33))
    }
    source = model(text, 20, lens=np.array([3, 2, 1, 3, 2], np.int32), **weights)
    found = planned(source, state="found", runs=4)
    assert (state(found.plan).copied, found.verdict.equal) == (0, True)


def test_a_first_state_that_a_later_node_reads_is_not_overwritten() -> None:
    text = LSTM.replace("last_cell) {", "last_cell, float[1, 1, 16] more) {")
    text = text.replace(", first_h, first_c)", ", first_h, first_c)\n  more = Add(first_h, last_hidden)")
    found = planned(model(text, 20), state="found", runs=2)
    assert [one.copied for one in found.plan.states] == [64, 0]
    assert found.verdict.equal


def test_the_first_state_is_zeros(monkeypatch: pytest.MonkeyPatch) -> None:
    first: list[Any] = []
    run = ArenaExecutor.run

    def noted(self: ArenaExecutor, feeds: Any, *more: Any, **options: Any) -> Any:
        first.append(feeds["past"].copy())
        return run(self, feeds, *more, **options)

    monkeypatch.setattr(ArenaExecutor, "run", noted)
    planned(scatter(), state="found", runs=2)
    assert [bool(value.any()) for value in first] == [False, True, True, True]


BRANCHES = """
cell (bool which, float[4, 4] state) => (float[4, 4] stateN) {
  stateN = If (which) <
    then_branch = yes () => (float[4, 4] a) { a = MatMul(state, state) },
    else_branch = no () => (float[4, 4] b) { b = Softmax(state) }>
}
"""


def test_the_result_of_a_branch_takes_the_place_of_a_state_that_it_reads() -> None:
    found = planned(model(BRANCHES, 20), state="found", runs=6)
    assert state(found.plan).copied == 0
    assert found.verdict.equal
    assert found.plan.arena_size == 128


def test_a_view_between_operator_and_output_makes_no_difference() -> None:
    text = SCATTER.replace("present = TensorScatter", "kept = TensorScatter").replace("ReduceMax", "ReduceMax")
    text = text.replace("(present, one)", "(kept, one)\n  present = Identity(kept)")
    found = planned(model(text, one=np.array([1], np.int64)), state="found", runs=2)
    assert (state(found.plan).copied, found.plan.arena_size) == (0, 32768 + 512)


@pytest.mark.parametrize("io", ["outputs", "inside", "outside"])
@pytest.mark.parametrize(
    "options",
    [{}, {"order": "any"}, {"layout": {"whole_buffers": True}}, {"search": "naive"}, {"target": {"streams": 2}}],
    ids=str,
)
def test_every_way_to_plan_keeps_a_state(io: str, options: dict[str, Any]) -> None:
    found = planned(scatter(), state="found", runs=2, io=io, **options)
    assert state(found.plan).copied == 0
    assert found.verdict.equal


def case() -> Case:
    return Case.of(scatter())


TAKEN = StateChoice({"past": "present"})


def changed(result: PlanResult, name: str, **fields: Any) -> PlanResult:
    buffers = tuple(replace(row, **fields) if row.name == name else row for row in result.buffers)
    return replace(result, buffers=buffers)


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        (lambda plan: changed(plan, "y", offset=0), "are live together"),
        (lambda plan: changed(plan, "past", last=0), "live in the steps"),
        (
            lambda plan: replace(plan, states=(replace(plan.states[0], size=64),)),
            "size of the state 'past' is 64, not 32768",
        ),
        (
            lambda plan: replace(plan, states=(replace(plan.states[0], copied=8),)),
            "copied of the state 'past' is 8, not 0",
        ),
        (
            lambda plan: replace(plan, states=(replace(plan.states[0], strides=(8, 4, 4)),)),
            "strides of the state 'past' are (8, 4, 4), not None",
        ),
        (lambda plan: replace(plan, states=(replace(plan.states[0], offset=64),)), "lies at 0 of 'arena', not at 64"),
        (
            lambda plan: replace(plan, states=(replace(plan.states[0], output="y"),)),
            "types or shapes that are no state",
        ),
        (
            lambda plan: replace(plan, states=(replace(plan.states[0], input="z"),)),
            "is no input and output of the model",
        ),
        (lambda plan: replace(plan, states=plan.states * 2), "is in two states"),
        (lambda plan: replace(plan, states=()), "kind of 'past' is 'input', not 'activation'"),
    ],
)
def test_the_check_knows_states(wrong: Any, reason: str) -> None:
    one = case()
    plan = one.plan(states=TAKEN)
    assert one.audit(plan).sound
    failures = [failure.reason for failure in one.audit(wrong(plan)).failures]
    assert any(reason in failure for failure in failures), failures


def test_a_tensor_over_a_state_that_is_dead_for_now_is_refused() -> None:
    one = Case.of(
        model(SAME_STEP.replace("hn = MatMul(a, h0)", "b = MatMul(h0, h0)\n  c = MatMul(b, a)\n  hn = MatMul(c, b)"))
    )
    plan = one.plan(states=StateChoice({"h0": "hn"}))
    place = rows(plan)["h0"]
    wrong = changed(plan, "c", offset=place.offset, arena=place.arena)
    assert any("are live together" in failure.reason for failure in one.audit(wrong).failures)


LOST = """
cell (float[4, 4] h0, float[4, 4] x) => (float[4, 4] hn, float[4, 4] y, float[16] z, float[8, 4] both) {
  y = Relu(h0)
  a = MatMul(x, y)
  w = Identity(h0)
  z = Reshape(w, flat)
  both = Concat <axis = 0> (h0, x)
  b = Add(a, h0)
  hn = MatMul(b, a)
}
"""


@pytest.mark.parametrize("io", ["outputs", "inside"])
def test_no_result_lies_in_bytes_that_a_state_is_copied_into(io: str) -> None:
    source = model(
        LOST.replace("b = Add(a, h0)", "b = Exp(a)").replace("MatMul(b, a)", "MatMul(b, h0)"),
        flat=np.array([16], np.int64),
    )
    found = planned(source, state={"h0": "hn"}, runs=3, io=io)
    assert state(found.plan).copied == 64
    assert found.verdict.equal
    place = rows(found.plan)["h0"]
    for name in ("y", "z", "both"):
        row = rows(found.plan)[name]
        assert row.offset >= place.offset + 64 or row.offset + row.size <= place.offset
    only = source.graph.output
    del only[1:]
    assert state(planned(source, state={"h0": "hn"}, runs=3, io=io).plan).copied == 64


def test_the_check_and_the_run_know_results_that_a_state_overwrites() -> None:
    text = (
        LOST.replace("b = Add(a, h0)", "b = Exp(a)")
        .replace("MatMul(b, a)", "MatMul(b, h0)")
        .replace("h0)\n  a", "x)\n  a")
    )
    one = Case.of(model(text, flat=np.array([16], np.int64)))
    plan = one.plan(states=StateChoice({"h0": "hn"}))
    wrong = changed(plan, "z", offset=rows(plan)["h0"].offset, alias="h0", parts=())
    wrong = changed(wrong, "w", offset=rows(plan)["h0"].offset, alias="h0", parts=())
    assert any("is overwritten after the run" in failure.reason for failure in one.audit(wrong).failures)
    assert run(one, wrong).differing == "z"


def run(one: Case, plan: PlanResult, runs: int = 3) -> Any:
    opened = Unfolded(one.model, one.shapes, one.constants)
    return state_run(same_plan(opened, plan, runs), ANYTHING)


def test_a_run_notices_a_state_that_is_overwritten() -> None:
    one = case()
    plan = one.plan(states=TAKEN)
    assert run(one, plan).equal
    verdict = run(one, changed(plan, "y", offset=64))
    assert not verdict.equal
    assert (verdict.differing, verdict.at) == ("y", 0)


def test_a_run_notices_an_output_that_is_not_carried() -> None:
    one = Case.of(model(SAME_STEP))
    plan = one.plan(states=StateChoice({"h0": "hn"}))
    assert run(one, plan).equal
    with pytest.raises(CheckFailed, match="not at the address"):
        run(one, replace(plan, states=(replace(plan.states[0], copied=0),)))


def test_a_run_starts_from_given_inputs(tmp_path: Any) -> None:
    rng = np.random.default_rng(0)
    np.savez(tmp_path / "in.npz", h0=rng.random((4, 4), np.float32), x=np.eye(4, dtype=np.float32))
    found = planned(model(FADED), state="found", inputs=tmp_path / "in.npz", runs=2)
    assert found.verdict.equal


WRONG = """
net (float[4, 4] a, float[4, 4] b, int64[4, 4] n) => (float[4, 4] y, float[4, 8] wide, float[4, 4] z) {
  y = MatMul(a, b)
  wide = Concat <axis = 1> (y, a)
  f = Cast <to = 1> (n)
  z = Add(f, b)
}
"""


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"a": "wide"}, "a state has one shape, but 'a' and 'wide' have [4, 4] and [4, 8]"),
        ({"n": "y"}, "a state has one element type, but 'n' and 'y' are INT64 and FLOAT"),
        ({"q": "y"}, "the state 'q' is not an input of the model"),
        ({"a": "f"}, "the state 'f' is not an output of the model"),
        ({"a": "b"}, "the state 'b' is not an output of the model"),
        ({"a": "y", "b": "y"}, "the output 'y' is given as the state of two inputs"),
    ],
)
def test_pairs_that_are_no_state(given: dict[str, str], reason: str) -> None:
    with pytest.raises(UsageError) as error:
        planned(model(WRONG, 20), state=given)
    assert reason in str(error.value)
    assert error.value.hint


def test_an_input_that_is_an_output_too_keeps_its_bytes() -> None:
    source = model("net (float[4, 4] past) => (float[4, 4] past, float[4, 4] present) { present = Neg(past) }", 20)
    with pytest.raises(UsageError, match="is an output, too"):
        planned(source, state={"past": "present"})
    found = planned(source, state="found", io="inside")
    assert not found.plan.states
    assert found.verdict.equal


@pytest.mark.parametrize("value", ["all", ["a"], 3, {"a": 1}])
def test_values_that_are_no_pairs(value: Any) -> None:
    with pytest.raises(UsageError, match="invalid state"):
        planned(model(WRONG, 20), state=value)


def test_a_range_from_0_is_for_lengths_of_states() -> None:
    source = model("g (float[n, 4] x) => (float[n, 4] y) { y = Relu(x) }", 20)
    with pytest.raises(UsageError, match="begins with 0"):
        planned(source, dims={"n": (0, 4)})
    assert planned(model(GROWING), dims={"past": (0, 3)}, verify=False).plan.ranges == {"past": (0, 3)}


def test_a_size_that_is_missing_is_asked_for_before_lengths_of_states() -> None:
    text = GROWING.replace(") =>", ", float[other] z) =>", 1)
    with pytest.raises(ModelError, match=r"sizes of inputs are not known: 'z' \[other\]"):
        planned(model(text), dims={"past": (0, 3)}, state="found")


def test_a_concat_of_data_dependent_size_begins_with_its_first_operand() -> None:
    text = """
    grown (float[1, n, 4] x, float[1, 1, 4] new) => (float[1, m, 4] y) {
      a = Exp(x)
      y = Concat <axis = 1> (a, new)
    }"""
    found = planned(model(text, 20), dims={"n": ":7"})
    assert (found.plan.arena_size, found.verdict.equal) == (128, True)
    assert planned(
        model(text.replace("1, n", "2, n").replace("1, 1", "2, 1").replace("1, m", "2, m"), 20), dims={"n": ":7"}
    ).verdict.equal


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        (["--state", "past=y"], "a state has one shape"),
        (["--state", "at=present"], "a state has one element type"),
        (["--state", "pest=present"], "did you mean 'past'?"),
        (["--state", "past=present", "--state", "past=y"], "'past' is given twice"),
        (["--state", "past=present", "--state", "x=present"], "is given as the state of two inputs"),
        (["--state", "all"], "invalid --state 'all'"),
        (["--runs", "0"], "invalid --runs 0"),
    ],
)
def test_bad_states_are_one_line(
    given: list[str], reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    onnx.save(scatter(), tmp_path / "net.onnx")
    files = ["-o", "out.onnx", "--emit", "plan.json", "--json", "result.json"]
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["onnxtile", "plan", "net.onnx", *given, *files])
    with pytest.raises(SystemExit) as end:
        cli.main()
    told = capsys.readouterr()
    assert (end.value.code, told.out, told.err.count("\n")) == (2, "", 1)
    assert told.err.startswith("error: ")
    assert reason in told.err
    assert [file.name for file in tmp_path.iterdir()] == ["net.onnx"]


def test_files_tell_of_states(tmp_path: Path) -> None:
    onnx.save(scatter(), tmp_path / "net.onnx")
    found = onnxtile.plan(tmp_path / "net.onnx", state="found", runs=2)
    found.save(tmp_path / "planned.onnx")
    for ending in ("json", "h", "html", "csv"):
        found.write(tmp_path / f"plan.{ending}")
    assert onnxtile.check_plan(tmp_path / "net.onnx", tmp_path / "plan.json").sound
    assert onnxtile.check_plan(tmp_path / "planned.onnx", tmp_path / "planned.onnx").sound
    told = json.loads((tmp_path / "plan.json").read_text())
    schema = json.loads((Path(__file__).parents[2] / "docs" / "plan.schema.json").read_text())
    jsonschema.validate(told, schema)
    assert [(s["input"], s["output"], s["offset"]) for s in told["states"]] == [("past", "present", 0)]
    header = (tmp_path / "plan.h").read_text()
    assert "#define PLAN_STATE_COUNT 1u" in header
    assert "{0u, 1u, 32768u, 0u, 1u, 32768u}" in header
    assert "1 kept in 32 KiB" in (tmp_path / "plan.html").read_text()


def test_the_report_of_states() -> None:
    def text(result: Any) -> str:
        file = io.StringIO()
        console = Console(file=file, width=200)
        for one in for_plan(result.to_dict()):
            console.print(one)
        return file.getvalue()

    kept = text(planned(scatter(), state="found", runs=2))
    assert "32,768 at 0 of 'arena'" in kept
    assert "with the state kept in the arena: 2" in kept
    listed = text(planned(scatter(), verify=False))
    assert "--state found keeps it" in listed
    assert "listed only" in listed
    assert "from past=0 to past=3" in text(planned(model(GROWING), dims={"past": (0, 3)}, state="found"))


def test_a_pipeline_takes_states(tmp_path: Path) -> None:
    onnx.save(scatter(), tmp_path / "net.onnx")
    text = '[[steps]]\ndo = "plan"\nstate = {past = "present"}\nruns = 2\n'
    (tmp_path / "p.toml").write_text(text)
    report = run_one(from_file(tmp_path / "p.toml"), tmp_path / "net.onnx", Destination())
    assert report.passed, report.error
    assert onnxtile.check_plan(tmp_path / "net.p.onnx", tmp_path / "net.p.onnx").sound


LOOP = """
g (float[16] x) => (float[16] y) <int64 n = {5}> {
  y = Loop (n, , x) < body = b (int64 i, bool c, float[16] a) => (bool c2, float[16] a2) {
    c2 = Identity(c)
    t = Relu(a)
    a2 = Exp(t)
  } >
}
"""
SCAN = """
g (float[16] x, float[3, 16] w) => (float[16] y, float[3, 16] all) {
  y, all = Scan <num_scan_inputs = 1, body = b (float[16] a, float[16] s) => (float[16] a2, float[16] o) {
    t = Mul(a, s)
    a2 = Tanh(t)
    o = Neg(s)
  }> (x, w)
}
"""


@pytest.mark.parametrize("text", [LOOP, SCAN], ids=["Loop", "Scan"])
def test_a_carried_value_has_one_address(text: str) -> None:
    found = planned(model(text, 20))
    (body,) = found.plan.bodies
    inner = {row.name: row for row in body.buffers}
    assert inner["a"].offset == inner["t"].offset == inner["a2"].offset
    assert (inner["a"].first, inner["a"].last) == (0, body.steps[-1])
    assert found.verdict.equal


def test_carried_values_that_change_places_are_moved() -> None:
    text = """
    g (float[16] x, float[16] z) => (float[16] y, float[16] v) <int64 n = {5}> {
      y, v = Loop (n, , x, z) < body = b (int64 i, bool c, float[16] a, float[16] d) => (bool c2, float[16] a2, float[16] d2) {
        c2 = Identity(c)
        a2 = Identity(d)
        d2 = Exp(a)
      } >
    }"""
    found = planned(model(text, 20))
    inner = {row.name: row for row in found.plan.bodies[0].buffers}
    assert inner["a"].offset != inner["a2"].offset == inner["d"].offset
    assert inner["d"].offset != inner["d2"].offset
    assert found.verdict.equal


def test_the_check_knows_carried_values() -> None:
    one = Case.of(model(LOOP.replace("a2 = Exp(t)", "u = Exp(t)\n    a2 = Add(u, a)"), 20))
    plan = one.plan()
    (body,) = plan.bodies
    place = next(row for row in body.buffers if row.name == "a")
    wrong = tuple(
        replace(row, offset=place.offset, alias="a") if row.name in {"t", "u"} else row for row in body.buffers
    )
    assert one.audit(plan).sound
    assert not one.audit(replace(plan, bodies=(replace(body, buffers=wrong),))).sound
