"""A kernel that shares bytes runs on several values; a whole run is repeated where runs may differ."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import onnx_ir as ir
import pytest
from hypothesis import given
from hypothesis import strategies as st

from onnxtile.arena import graph_run
from onnxtile.arena import kernel as repeat
from onnxtile.arena.kernel import Kernel, ValueTable
from onnxtile.arena.memory import TensorMemory
from onnxtile.arena.run import SEVERAL
from tests.counted import calls
from tests.planning.conftest import Case

CHAIN = "chain (float[2, 8] x) => (float[2, 8] y) <float[8] w = {1, 2, 3, 4, 5, 6, 7, 8}> { a = Exp(x) b = Relu(a) y = Mul(b, w) }"


def test_one_run_is_enough_where_every_run_is_the_same() -> None:
    case = Case.of(CHAIN)
    verdict = case.run(case.plan())
    assert (verdict.equal, verdict.runs, verdict.repeated) == (True, 1, 2)


def test_without_shared_bytes_no_kernel_is_repeated() -> None:
    case = Case.of(CHAIN)
    assert case.run(case.plan(planner="naive", share=("view",))).repeated == 0


def test_of_equal_kernels_at_equal_distances_one_runs_on_other_values() -> None:
    names = [f"v{number}" for number in range(20)]
    nodes = " ".join(f"{made} = Relu({read})" for read, made in zip(["x", *names], [*names, "y"], strict=True))
    case = Case.of(f"relus (float[16] x) => (float[16] y) {{ {nodes} }}")
    verdict = case.run(case.plan())
    assert (verdict.equal, verdict.kernels, verdict.repeated) == (True, 21, 1)


def test_kernels_with_other_indices_all_run_on_other_values() -> None:
    case = Case.of(
        "rows (float[8, 4] x, float[1, 4] u) => (float[8, 4] y) <int64[1, 1] i = {1}, int64[1, 1] j = {5}> "
        "{ a = Exp(x) b = ScatterND(a, i, u) y = ScatterND(b, j, u) }"
    )
    verdict = case.run(case.plan())
    assert (verdict.equal, verdict.repeated) == (True, 2)


@pytest.mark.parametrize(
    ("text", "options"),
    [
        (CHAIN, {"order": "any"}),
        ("two (float[4] x) => (float[4] y) { a = Exp(x) b = Abs(x) y = Add(a, b) }", {"streams": 2}),
        (
            "branch (float[4] x, bool p) => (float[4] y) { y = If (p) <then_branch = t () => (float[4] q) { q = Exp(x) }, "
            "else_branch = e () => (float[4] r) { r = Abs(x) }> }",
            {},
        ),
    ],
)
def test_several_runs_where_they_may_differ(text: str, options: dict[str, object]) -> None:
    case = Case.of(text)
    verdict = case.run(case.plan(**options))
    assert (verdict.equal, verdict.runs) == (True, SEVERAL)


def test_a_kernel_that_is_wrong_on_other_values_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first value of the operand decides here whether a kernel spoils its result: in the plain run it does not."""
    case = Case.of("g (float[8] x) => (float[8] y) { a = Exp(x) y = Relu(a) }")
    result = case.plan()
    original = graph_run.GraphRun._run

    def spoiled(
        run: graph_run.GraphRun,
        kernel: Kernel,
        values: ValueTable,
        targets: dict[ir.Value, TensorMemory | None],
    ) -> None:
        original(run, kernel, values, targets)
        for value, site in targets.items():
            is_inside = site is not None and site is run.sites.get(value)
            if value.name == "y" and is_inside and site and site.data[:4].view(np.float32)[0] > 100:
                site.data[-1] ^= 1

    monkeypatch.setattr(graph_run.GraphRun, "_run", spoiled)
    feeds = [{"x": np.array([1, 6, 6, 6, 6, 6, 6, 6], np.float32)}]
    verdict = case.run(result, feeds=feeds)
    assert (verdict.equal, verdict.differing) == (False, "y")
    monkeypatch.setattr(graph_run, "shares_bytes", lambda *_: False)
    assert case.run(result, feeds=feeds).equal


def test_an_operand_that_keeps_its_values_is_put_back_after_a_repeated_run() -> None:
    """The condition runs on other values, the integers do not: both trials write over them."""
    text = "g (bool[4] p, int64[4] x) => (int64[4] z) <int64[4] one = {1, 1, 1, 1}> { c = Not(p) y = Neg(x) z = Where(c, one, y) }"
    case = Case.of(text)
    result = case.plan()
    rows = {row.name: row for row in result.buffers}
    assert rows["z"].offset == rows["y"].offset
    verdict = case.run(result)
    assert verdict.equal
    assert verdict.repeated


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(1, 6)), max_size=6))
def test_two_of_many_tensors_share_a_byte(ranges: list[tuple[int, int]]) -> None:
    block = np.zeros(64, np.uint8)
    tensors = [TensorMemory(block[start : start + size], start, ir.DataType.UINT8, (size,)) for start, size in ranges]
    held = [set(range(start, start + size)) for start, size in ranges]
    assert repeat._share_bytes(tensors) == any(not a.isdisjoint(b) for a, b in combinations(held, 2))


def test_a_kernel_of_many_operands_is_looked_at_in_linear_time() -> None:
    def work(count: int) -> int:
        tensors = [TensorMemory.empty(ir.DataType.FLOAT, (2,), 8) for _ in range(count)]
        return calls(lambda: repeat._share_bytes(tensors))

    assert work(400) < 2.5 * work(200)


# Kernels in bodies that round differently where vectors begin elsewhere: the proof runs rows of a Scan where onnxruntime has them.


ROWS = """
rows (float[5,6] x) => (float[5,6] y) {
  a = Neg(x)
  y = Scan <num_scan_inputs = 1, body = step (float[6] row) => (float[6] made) { made = Softplus(row) }>(a)
}
"""
BACKWARDS = ROWS.replace("_inputs = 1,", "_inputs = 1, scan_input_directions = [1], scan_output_directions = [1],")
COLUMNS = ROWS.replace("_inputs = 1,", "_inputs = 1, scan_input_axes = [1], scan_output_axes = [1],").replace(
    "[6]", "[5]"
)
BRANCHES = """
branches (float[5,6] x, bool c) => (float[5,6] y) {
  y = Scan <num_scan_inputs = 1, body = step (float[6] row) => (float[6] made) {
    made = If(c) <then_branch = t () => (float[6] p) { p = Softplus(row) }, else_branch = e () => (float[6] q) { q = Sin(row) }>
  }>(x)
}
"""
IN_A_BRANCH = """
in_a_branch (float[5,6] x, bool c) => (float[5,6] y) {
  a = Neg(x)
  y = If(c) <
    then_branch = t () => (float[5,6] p) {
      p = Scan <num_scan_inputs = 1, body = step (float[6] row) => (float[6] made) { made = Softplus(row) }>(a) },
    else_branch = e () => (float[5,6] q) { q = Sin(a) }>
}
"""
GRAPHS = {"rows": ROWS, "backwards": BACKWARDS, "columns": COLUMNS, "branches": BRANCHES, "in a branch": IN_A_BRANCH}


@pytest.mark.parametrize("io", ["inside", "outputs"])
@pytest.mark.parametrize("text", GRAPHS.values(), ids=GRAPHS)
def test_rows_of_a_scan_are_rounded_where_they_lie(text: str, io: str) -> None:
    case = Case.of(text)
    verdict = case.run(case.plan(io=io), runs=30)
    assert verdict.equal, verdict
    assert all("round differently" in reason for reason in verdict.excused.values())
