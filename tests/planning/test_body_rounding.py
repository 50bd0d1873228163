"""Kernels in bodies that round differently where vectors begin elsewhere: the proof runs rows of a Scan where onnxruntime has them."""

import pytest

from tests.planning.conftest import Case

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
