"""States that grow: their strides are those of the largest size at every length, so that no row moves."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import onnxtile
from onnxtile.arena.kernel import PreparedNode
from onnxtile.arena.memory import StateRows, TensorMemory
from onnxtile.arena.run import ArenaExecutor, same_plan, state_run
from onnxtile.check.audit import check
from onnxtile.declare.plan_document import UNSAID
from onnxtile.kernels.from_onnx import StateChoice
from onnxtile.model.feeds import ANYTHING
from onnxtile.shapes.opened_calls import Unfolded
from onnxtile.system.errors import UsageError
from tests.planning.conftest import Case, rows
from tests.planning.test_states import ATTENTION, GROWING, MULTI_HEAD, model, planned, state

TAKEN = StateChoice(finds=True, takes_found=True)
FIXED = GROWING.replace("HEADS", "4").replace("past,", "7,").replace("total,", "8,")
MERGED = """
cache (float[1, 4, past, 16] past_k, float[1, 4, 1, 16] x) => (float[1, 4, total, 16] present_k, float[r, 16] y) {
  present_k = Concat <axis = 2> (past_k, x)
  all = Reshape(present_k, shape)
  y = Neg(all)
}
"""
BEHIND = """
cache (float[1, 4, past, 16] past_k, float[1, 4, 1, 16] x) => (float[1, 4, total, 16] present_k) {
  joined = Concat <axis = 2> (past_k, x)
  flat = Reshape(joined, flat_shape)
  present_k = Reshape(flat, full_shape)
}
"""
UNSQUEEZED = """
cache (float[4, past, 16] past_k, float[1, 4, 1, 16] x) => (float[4, total, 16] present_k, float[1, 4, 1, 16] y) {
  old = Unsqueeze(past_k, zero)
  joined = Concat <axis = 2> (old, x)
  present_k = Squeeze(joined, zero)
  t = Transpose <perm = [0, 1, 3, 2]> (joined)
  scores = MatMul(x, t)
  y = MatMul(scores, joined)
}
"""
CUT = """
cache (float[1, 4, 7, 16] past_k, float[1, 4, 1, 16] x) => (float[1, 4, 8, 16] present_k, float[1, 2, 7, 16] y) {
  first, second = Split <axis = 1, num_outputs = 2> (past_k)
  y = MatMul(first, square)
  present_k = Concat <axis = 2> (past_k, x)
}
"""


def numbers(*values: int) -> Any:
    return np.array(values, np.int64)


@pytest.mark.parametrize("text", [GROWING, ATTENTION, MULTI_HEAD], ids=["Concat", "Attention", "MultiHeadAttention"])
def test_no_row_moves_at_any_length(text: str) -> None:
    found = planned(model(text, heads=4), dims={"past": (1, 7)}, state="found")
    assert {one.strides for one in found.plan.states} == {(4 * 8 * 64, 8 * 64, 64, 4)}
    assert all(one.copied == 0 for one in found.plan.states)
    assert (found.verdict.equal, found.verdict.runs) == (True, 7)


def test_rows_in_an_arena() -> None:
    data = np.zeros(12, np.uint8)
    memory = TensorMemory(np.arange(1, 7, dtype=np.uint8), 0, ir.DataType.UINT8, (3, 2))
    cache = StateRows(data, 3, 4)
    cache.write(memory)
    assert data.tolist() == [1, 2, 0, 0, 3, 4, 0, 0, 5, 6, 0, 0]
    cache.write(replace(memory, data=np.full(6, 9, np.uint8)), begin=1)
    cache.read(memory)
    assert memory.data.tolist() == [1, 9, 3, 9, 5, 9]


def test_a_run_writes_only_what_is_new(monkeypatch: pytest.MonkeyPatch) -> None:
    one = Case.of(model(FIXED))
    plan = one.plan(states=TAKEN)
    opened = Unfolded(one.model, one.shapes, one.constants)
    written: list[int] = []
    write = StateRows.write

    def noted(self: StateRows, memory: TensorMemory, begin: int = 0) -> None:
        written.append(begin)
        write(self, memory, begin)

    monkeypatch.setattr(StateRows, "write", noted)
    assert state_run(same_plan(opened, plan, 1), ANYTHING).equal
    # The input as it is given, and the last of eight elements of each row.
    assert written == [0, 7 * 64]
    monkeypatch.setattr(StateRows, "write", lambda self, memory, begin=0: write(self, memory, begin and begin + 64))
    assert not state_run(same_plan(opened, plan, 1), ANYTHING).equal


@pytest.mark.parametrize("dims", [{"past": 7}, {"past": (1, 7)}], ids=["fixed", "range"])
def test_a_view_over_rows_is_a_copy(dims: Any) -> None:
    found = planned(model(MERGED, shape=numbers(-1, 16)), dims=dims, state="found")
    assert found.verdict.equal
    assert state(found.plan).copied == 0
    # At its largest size alone, the cache is contiguous.
    is_view = rows(found.plan)["all"].offset == rows(found.plan)["present_k"].offset
    assert is_view == (dims["past"] == 7)


def test_an_output_behind_a_view_over_rows_is_copied() -> None:
    source = model(BEHIND, flat_shape=numbers(1, -1, 16), full_shape=numbers(1, 4, -1, 16))
    found = planned(source, dims={"past": (1, 3)}, state={"past_k": "present_k"}, runs=3)
    assert state(found.plan).strides is None
    assert found.verdict.equal


def test_a_view_with_the_same_rows_has_their_strides() -> None:
    found = planned(model(UNSQUEEZED, zero=numbers(0)), dims={"past": (0, 5)}, state="found")
    assert (state(found.plan).axis, state(found.plan).copied) == (1, 0)
    places = rows(found.plan)
    assert len({places[name].offset for name in ("past_k", "old", "joined", "present_k")}) == 1
    assert (found.verdict.equal, found.verdict.runs) == (True, 6)


def test_a_part_of_a_cache_that_is_not_full_is_a_copy() -> None:
    found = planned(model(CUT, square=np.ones((16, 16), np.float32)), state="found")
    assert found.verdict.equal
    assert rows(found.plan)["first"].offset != rows(found.plan)["past_k"].offset


def test_the_check_knows_that_rows_are_apart() -> None:
    one = Case.of(model(CUT, square=np.ones((16, 16), np.float32)))
    plan = one.plan(states=TAKEN)
    assert one.audit(plan).sound
    at = {row.name: row for row in plan.buffers}
    first = replace(at["first"], offset=at["past_k"].offset, alias="present_k")
    wrong = replace(plan, buffers=tuple(first if row.name == "first" else row for row in plan.buffers))
    reasons = [failure.reason for failure in one.audit(wrong).failures]
    assert any("(Split) is no lawful alias" in reason for reason in reasons), reasons


def test_the_check_knows_strides() -> None:
    one = Case.of(model(FIXED))
    plan = one.plan(states=TAKEN)
    (kept,) = plan.states
    for wrong in ((4 * 8 * 64, 4 * 64, 64, 4), (8, 4)):
        reasons = [
            failure.reason for failure in one.audit(replace(plan, states=(replace(kept, strides=wrong),))).failures
        ]
        assert reasons == [f"strides of the state 'past_k' are {wrong}, not (2048, 512, 64, 4)"]


def test_a_contiguous_output_has_no_strides_of_a_cache() -> None:
    """A reshape over the rows makes it contiguous at each length, not only at the largest."""
    text = BEHIND.replace("past,", "3,").replace("total,", "4,")
    one = Case.of(model(text, flat_shape=numbers(1, -1, 16), full_shape=numbers(1, 4, -1, 16)))
    plan = one.plan(states=StateChoice({"past_k": "present_k"}))
    wrong = replace(plan.states[0], size=UNSAID, copied=UNSAID, strides=(4 * 8 * 64, 8 * 64, 64, 4))
    found = check(one.model, replace(plan, states=(wrong,)), one.shapes, one.constants)
    assert any("is contiguous, and has not the strides" in failure.reason for failure in found.failures)


def test_one_row_is_not_written_again() -> None:
    """Attention appends to a cache of one row as a Concat does."""
    one = Case.of(
        model(ATTENTION.replace("4, 1, 16", "1, 1, 16").replace("4, past", "1, 3").replace("4, total", "1, 4"))
    )
    plan = one.plan(states=TAKEN)
    run = ArenaExecutor(one.model, plan, one.shapes, one.constants)
    steps = [step for step in run._run.steps.values() if isinstance(step, PreparedNode)]
    moved = [step.there for step in steps if step.there is not None]
    assert [{value.name: spans for value, spans in there.items()} for there in moved] == [
        {"present_k": ((0, 192),), "present_v": ((0, 192),)}
    ]


def test_the_header_has_rows_and_their_distance(tmp_path: Path) -> None:
    onnx.save(model(GROWING, heads=4), tmp_path / "net.onnx")
    found = onnxtile.plan(tmp_path / "net.onnx", dims={"past": (0, 7)}, state="found", verify=False)
    found.write(tmp_path / "plan.h")
    assert "2048u, 0u, 4u, 512u}" in (tmp_path / "plan.h").read_text()


MASKED = """
step (float[1, 1, 64] q, float[1, 1, 32] k, float[1, 1, 32] v, float[1, 2, past, 16] past_k, float[1, 2, past, 16] past_v,
  int64[1, total] mask) => (float[1, 1, 64] y, float[1, 2, total, 16] present_k, float[1, 2, total, 16] present_v) {
  all = ReduceSum <keepdims = 0> (mask, last)
  less = Sub(all, one)
  lens = Cast <to = 6> (less)
  shape = Shape(mask)
  long = Gather(shape, last_number)
  length = Cast <to = 6> (long)
  y, present_k, present_v = com.microsoft.GroupQueryAttention <num_heads = 4, kv_num_heads = 2> (q, k, v, past_k, past_v, lens, length)
}
"""


def test_a_mask_that_is_one_longer_than_the_cache() -> None:
    """A file names the length of the mask by itself; the operator says nothing of the length of the present."""
    source = model(MASKED, 20, last=numbers(1), one=numbers(1), last_number=np.array(1, np.int64))
    dims = {"past": (1, 5), "total": "past+1"}
    found = planned(source, dims=dims, inputs={"mask": (1, 2)}, state="found")
    assert {one.strides for one in found.plan.states} == {(2 * 6 * 64, 6 * 64, 64, 4)}
    assert (found.verdict.equal, found.verdict.runs) == (True, 5)
    fixed = planned(source, dims={"past": 4, "total": "past + 1"}, inputs={"mask": (1, 2)}, verify=False).plan
    assert fixed.dims == {"past": 4, "total": 5}


@pytest.mark.parametrize(
    ("dims", "reason"),
    [
        ({"total": "past+1"}, "the size of 'total' depends on 'past', which has no size"),
        ({"past": "total + 1", "total": "past + 1"}, "depends on"),
        ({"past": (1, 5), "total": "past-1"}, "give a whole number"),
        ({"past": (1, 5), "totals": "past + 1"}, "has no dimension 'totals'"),
    ],
    ids=["without", "circle", "difference", "unknown"],
)
def test_bad_sums_of_dimensions(dims: Any, reason: str) -> None:
    source = model(MASKED, 20, last=numbers(1), one=numbers(1), last_number=np.array(1, np.int64))
    with pytest.raises(UsageError, match=reason):
        planned(source, dims=dims, state="found", verify=False)
