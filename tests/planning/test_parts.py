"""Parts of a whole, joined and cut without copies wherever their bytes are contiguous; and what is counted as a copy."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import pytest
from hypothesis import given
from hypothesis import strategies as some

import onnxtile
from onnxtile import api
from onnxtile.check.addresses import bytes_read
from onnxtile.check.graph import GraphModel
from onnxtile.check.reading import plain_model
from onnxtile.check.sharing import SharedStates
from onnxtile.declare.plan_document import CopyCount
from onnxtile.kernels.aliases import MOST_RUNS, LayoutFacts, spans_read
from onnxtile.model.constants import Constants
from onnxtile.model.load import load
from onnxtile.shapes.resolve import resolve
from onnxtile.tiling.limits import Limits
from tests.draws import draws
from tests.planning.conftest import Case, aliases, proved, rows


def joined(shape: str, axis: int, result: str) -> str:
    return f"""
    joined (float[{shape}] x) => (float[{result}] y) {{
      a = MaxPool<kernel_shape = [1, 1]>(x)
      b = AveragePool<kernel_shape = [1, 1]>(x)
      c = Concat<axis = {axis}>(a, b)
      y = Neg(c)
    }}
    """


@pytest.mark.parametrize(
    ("shape", "axis", "result"),
    [("1,4,5,5", 1, "1,8,5,5"), ("3,4,5,5", 0, "6,4,5,5"), ("1,1,5,5", 2, "1,1,10,5"), ("1,1,1,5", 3, "1,1,1,10")],
)
def test_operands_are_written_into_the_result(shape: str, axis: int, result: str) -> None:
    found = proved(joined(shape, axis, result))
    half = rows(found)["a"].size
    assert aliases(found) == {"a": "c", "b": "c", "y": "c"}
    assert [rows(found)[name].offset for name in "abc"] == [0, half, 0]
    assert found.copies == CopyCount(2, 2 * half, 0, 0)


@pytest.mark.parametrize(
    ("shape", "axis", "result"), [("2,4,5,5", 1, "2,8,5,5"), ("1,4,5,5", 2, "1,4,10,5"), ("1,1,2,5", -1, "1,1,2,10")]
)
def test_operands_whose_bytes_are_not_in_one_piece_are_copied(shape: str, axis: int, result: str) -> None:
    found = proved(joined(shape, axis, result))
    half = rows(found)["a"].size
    assert aliases(found) == {"y": "c"}
    assert found.copies == CopyCount(0, 0, 2, 2 * half)


def test_an_operand_that_is_given_twice_is_copied_once() -> None:
    found = proved("""
    twice (float[4,5] x) => (float[12,5] y) { a = Exp(x) b = Sin(x) c = Concat<axis = 0>(a, b, a) y = Softmax(c) }
    """)
    assert aliases(found)["a"] == "c"
    assert (found.copies.avoided, found.copies.remaining) == (2, 1)


def test_constants_and_inputs_are_copied() -> None:
    found = proved("""
    outer (float[1,5] x) => (float[3,5] y) <float[1,5] w = {1.0, 2.0, 3.0, 4.0, 5.0}> {
      a = Exp(x)
      y = Concat<axis = 0>(x, a, w)
    }
    """)
    assert aliases(found) == {"a": "y"}
    assert (found.copies.avoided, found.copies.remaining) == (1, 2)


def test_a_chain_of_joins_lies_in_one_buffer_and_every_link_stays_readable() -> None:
    found = proved("""
    dense (float[1,4,5,5] x) => (float[1,16,5,5] y) {
      a = Exp(x)
      b = Sin(a)
      c = Concat<axis = 1>(a, b)
      d = Softmax<axis = 1>(c)
      e = Concat<axis = 1>(c, d)
      y = Add(e, e)
    }
    """)
    assert aliases(found) == dict.fromkeys("abcdy", "e")
    assert (found.copies.avoided, found.copies.remaining) == (4, 0)


CUTS = """
cut (float[6,4] x, float[4,4] w) => (float[2,4] y, float[2,4] z, float[1,2] s) {
  a = Exp(x)
  p, q, r = Split<axis = 0, num_outputs = 3>(a)
  from = Constant<value = int64[2] {4, 1}>()
  to = Constant<value = int64[2] {5, 3}>()
  piece = Slice(a, from, to)
  y = Add(p, q)
  z = MatMul(r, w)
  s = Sin(piece)
}
"""


def test_results_of_split_and_slice_are_read_in_place() -> None:
    found = proved(CUTS)
    offsets = {name: rows(found)[name].offset - rows(found)["a"].offset for name in ("p", "q", "r", "piece")}
    assert offsets == {"p": 0, "q": 32, "r": 64, "piece": 68}
    assert (found.copies.avoided, found.copies.remaining) == (4, 0)


def test_a_cut_in_part_of_the_rows_is_copied() -> None:
    found = proved(
        "cols (float[6,4] x) => (float[6,2] y, float[6,2] z) { a = Exp(x) y, z = Split<axis = 1, num_outputs = 2>(a) }"
    )
    assert aliases(found) == {}
    assert (found.copies.avoided, found.copies.remaining) == (0, 2)


def test_slices_with_steps_or_bounds_from_the_outside_are_copied() -> None:
    found = proved("""
    steps (float[6,4] x, int64[1] from) => (float[3,4] y, float[N,4] z) {
      a = Exp(x)
      first = Constant<value = int64[1] {0}>()
      to = Constant<value = int64[1] {6}>()
      step = Constant<value = int64[1] {2}>()
      y = Slice(a, first, to, first, step)
      z = Slice(a, from, to)
    }
    """)
    assert aliases(found) == {}


def test_negative_and_excessive_bounds_are_those_of_the_specification() -> None:
    found = proved("""
    bounds (float[6,4] x) => (float[2,4] y) {
      a = Exp(x)
      from = Constant<value = int64[1] {-2}>()
      to = Constant<value = int64[1] {1000}>()
      axis = Constant<value = int64[1] {-2}>()
      b = Slice(a, from, to, axis)
      y = Softmax(b)
    }
    """)
    assert aliases(found) == {"b": "a", "y": "a"}
    assert rows(found)["b"].offset == 4 * 16


def test_a_part_that_is_written_over_leaves_the_others_as_they_are() -> None:
    found = proved("""
    apart (float[4,4] x) => (float[2,4] y, float[2,4] z) {
      a = Exp(x)
      p, q = Split<axis = 0, num_outputs = 2>(a)
      y = Neg(p)
      z = Add(q, y)
    }
    """)
    assert aliases(found) == {"p": "a", "q": "a", "y": "a", "z": "a"}


def test_a_whole_that_is_read_later_keeps_its_parts_as_they_are() -> None:
    found = proved("""
    later (float[4,4] x) => (float[2,4] y, float[4,4] z) {
      a = Exp(x)
      p, q = Split<axis = 0, num_outputs = 2>(a)
      y = Add(p, q)
      z = Neg(a)
    }
    """)
    # Either y is written over p, which is then a copy, or p is read where it is: both take as much.
    assert aliases(found) == {"q": "a", "y": "p", "z": "a"}


def test_views_stand_between_parts() -> None:
    found = proved("""
    views (float[1,4,4] x) => (float[8,4] y) {
      flat = Constant<value = int64[2] {4, 4}>()
      a = Exp(x)
      b = Sin(x)
      c = Reshape(a, flat)
      d = Reshape(b, flat)
      e = Concat<axis = 0>(c, d)
      y = Softmax(e)
    }
    """)
    assert aliases(found) == dict.fromkeys("abcdy", "e")
    assert (found.copies.avoided, found.copies.remaining) == (4, 0)


def test_a_part_is_aligned_to_its_element_only() -> None:
    case = Case.of("""
    quantised (float[4,3] x, float scale) => (float[2,3] y, float[2,3] z) {
      zero = Constant<value = uint8 {0}>()
      p = QuantizeLinear(x, scale, zero)
      q, r = Split<axis = 0, num_outputs = 2>(p)
      y = DequantizeLinear(q, scale)
      z = DequantizeLinear(r, scale)
    }
    """)
    found = rows(case.plan())
    assert found["r"].offset - found["q"].offset == 6
    assert case.run(case.plan()).equal


def test_joining_never_raises_the_peak() -> None:
    # The result would lie there from the first step on, while "big" needs the bytes.
    text = """
    early (float[1,4] x) => (float[4,4] y) {
      a = Exp(x)
      rows = Constant<value = int64[2] {64, 4}>()
      big = Expand(a, rows)
      axes = Constant<value = int64[1] {0}>()
      b = ReduceSum(big, axes)
      three = Constant<value = int64[2] {3, 4}>()
      c = Expand(b, three)
      y = Concat<axis = 0>(a, c)
    }
    """
    case = Case.of(text)
    assert proved(text).peak <= case.plan_views().peak


def test_only_the_rules_that_are_asked_for_are_used() -> None:
    case = Case.of(joined("1,4,5,5", 1, "1,8,5,5"))
    assert aliases(case.plan(share=("view",))) == {}
    assert aliases(case.plan(share=("in place",))) == {"y": "c"}
    assert aliases(case.plan(share=("join",))) == {"a": "c", "b": "c"}


def test_what_is_there_already_is_not_written_again_while_it_is_read() -> None:
    # Both results hold the same: in one place, the second m of each would be copied over that of the other.
    case = Case.of("""
    twice (float[2] p, float[2] q) => (float[6] y, float[6] z) {
      a = Relu(p)
      m = Relu(q)
      b = Concat<axis = 0>(a, m, m)
      c = Concat<axis = 0>(a, m, m)
      s = Exp(b)
      t = Exp(c)
      y = Add(s, b)
      z = Add(t, c)
    }
    """)
    for order in ("model", "any"):
        result = case.plan(order=order)
        assert rows(result)["b"].offset != rows(result)["c"].offset
        assert case.run(result).equal


def test_a_copy_of_what_lies_there_is_not_made_while_that_is_read() -> None:
    # The cut holds what x does, and y would be written over both: the cut would be copied onto x while x is read.
    case = Case.of("""
    over (float[1,4] x) => (float[1,5] p, float[1,4] y, float[1,9] q) {
      a = Exp(x)
      one = Constant<value = int64[1] {1}>()
      two = Constant<value = int64[1] {2}>()
      b = Slice(a, one, two, one)
      c = Concat<axis = 1>(b, a, x)
      sizes = Constant<value = int64[2] {5, 4}>()
      p, d = Split<axis = 1>(c, sizes)
      y = Mul(d, x)
      q = Relu(c)
    }
    """)
    result = case.plan(io="inside", overwrite_inputs=True, alignment=4)
    assert case.run(result).equal


# The runs of bytes that a Slice reads: the planner and the check find them, each by its own code, as numpy does.


Box = tuple[tuple[int, ...], list[tuple[int, int]]]


@some.composite
def boxes(draw: some.DrawFn) -> Box:
    """Draw the sizes of a tensor, and a range of each axis."""
    sizes = tuple(draw(some.lists(some.integers(1, 5), min_size=1, max_size=4)))
    starts = [draw(some.integers(0, size - 1)) for size in sizes]
    return sizes, [(start, draw(some.integers(start + 1, size))) for start, size in zip(starts, sizes, strict=True)]


def sliced(sizes: tuple[int, ...], ranges: list[tuple[int, int]]) -> onnx.ModelProto:
    """Return a model that slices the result of a node."""
    shape = ", ".join(map(str, sizes))
    part = ", ".join(str(stop - start) for start, stop in ranges)
    made = onnx.parser.parse_model(
        f'<ir_version: 10, opset_import: ["": 17]> g (float[{shape}] x) => (float[{part}] z) '
        "{ y = Relu(x) [cut] part = Slice(y, starts, stops) z = Neg(part) }"
    )
    for name, numbers in zip(("starts", "stops"), zip(*ranges, strict=True), strict=True):
        made.graph.initializer.append(onnx.numpy_helper.from_array(np.array(numbers, np.int64), name))
    return made


def runs(places: list[int]) -> list[tuple[int, int]]:
    """Return ordered places as ranges without gaps."""
    found: list[tuple[int, int]] = []
    for place in places:
        found = (
            [*found[:-1], (found[-1][0], place + 1)]
            if found and found[-1][1] == place
            else [*found, (place, place + 1)]
        )
    return found


@given(boxes())
@draws(30, 120)
def test_a_slice_of_few_runs_reads_these_alone(box: Box) -> None:
    sizes, ranges = box
    model = load(sliced(sizes, ranges))
    shapes, constants = resolve(model), Constants(model)
    (node,) = (node for node in model.graph if node.op_type == "Slice")
    assert node.inputs[0] is not None
    planned = spans_read(node, node.inputs[0], LayoutFacts(model, shapes, constants))
    graph = GraphModel(*plain_model(model, shapes, constants)).graph
    (seen,) = (node for node in graph.nodes if node.op_type == "Slice")
    assert seen.inputs[0] is not None
    checked = bytes_read(seen, seen.inputs[0], SharedStates())
    assert (None if planned is None else list(map(tuple, planned))) == checked
    numbers = np.arange(np.prod(sizes)).reshape(sizes)[tuple(slice(*one) for one in ranges)]
    true = [(4 * start, 4 * stop) for start, stop in runs(numbers.ravel().tolist())]
    if checked is None:
        assert len(true) > MOST_RUNS
    else:
        # Runs that follow each other are one to numpy.
        assert runs([byte for start, stop in checked for byte in range(start, stop)]) == true


def test_rows_of_planes_die_one_after_the_other() -> None:
    """Of three planes, the upper rows are free for the result that is made of them."""
    case = Case.of("""
    planes (float[1, 3, 8, 16] x) => (float[1, 3, 4, 16] y) {
      upper_start = Constant<value_ints = [0]>()
      upper_stop = Constant<value_ints = [4]>()
      lower_stop = Constant<value_ints = [8]>()
      rows = Constant<value_ints = [2]>()
      a = Relu(x)
      upper = Slice(a, upper_start, upper_stop, rows)
      b = MaxPool<kernel_shape = [3, 3], pads = [1, 1, 1, 1]>(upper)
      c = MaxPool<kernel_shape = [3, 3], pads = [1, 1, 1, 1]>(b)
      lower = Slice(a, upper_stop, lower_stop, rows)
      y = Add(c, lower)
    }
    """)
    result = case.plan()
    assert case.run(result).equal
    whole, half = 3 * 8 * 16 * 4, 3 * 4 * 16 * 4
    assert sorted({(part.size, part.last) for part in rows(result)["a"].parts or ()}) == [(256, 5), (256, 8)]
    assert result.peak == whole + half


def test_the_scripts_of_certificates_know_the_runs(tmp_path: Path) -> None:
    made = onnx.parser.parse_model(
        """<ir_version: 10, opset_import: ["": 18]> g (float[1, 3, 8, 16] x) => (float[1, 3, 1, 1] y) {
          a = Relu(x)
          upper = Slice(a, zero, four, rows)
          b = ReduceMax <keepdims = 1> (upper, image)
          lower = Slice(a, four, eight, rows)
          c = Transpose <perm = [0, 1, 3, 2]> (lower)
          d = ReduceMax <keepdims = 1> (c, image)
          y = Add(b, d)
        }"""
    )
    for name, numbers in {"zero": [0], "four": [4], "eight": [8], "rows": [2], "image": [2, 3]}.items():
        made.graph.initializer.append(onnx.numpy_helper.from_array(np.array(numbers, np.int64), name))
    onnx.save(made, tmp_path / "net.onnx")
    planned = onnxtile.plan(tmp_path / "net.onnx")
    assert planned.plan.optimal_over == "any order"
    assert len(next(row for row in planned.plan.buffers if row.name == "a").parts or ()) == 6
    planned.write(tmp_path / "net.certificate.json")
    scripts = Path(onnxtile.__file__).parent / "check"
    for script, *files in (["check_account.py", "net.onnx"], ["check_bound.py"]):
        command = [sys.executable, str(scripts / script), *files, "net.certificate.json"]
        ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert ended.returncode == 0, ended.stderr


# Plans of tiled layers: the tiles are cut, joined and added where they lie.


LAYER = """
<ir_version: 10, opset_import: ["" : 20]>
layer (float[ROWS,96] x) => (float[ROWS,80] y) {
  side = Constant<value = int64[2] {96, 80}>()
  w = ConstantOfShape<value = float[1] {0.5}>(side)
  a = Exp(x)
  b = MatMul(a, w)
  y = Neg(b)
}
"""


def tiled(rows: int, limits: Limits) -> Case:
    model = onnx.parser.parse_model(LAYER.replace("ROWS", str(rows)))
    return Case.of(api.tile(model, limits, verify=False).model)


@pytest.mark.parametrize(
    "limits", [Limits(64, 32, 80), Limits(64, 96, 16), Limits(64, 32, 16)], ids=["k", "n", "k and n"]
)
def test_one_row_costs_no_copies(limits: Limits) -> None:
    case = tiled(1, limits)
    result = case.plan()
    assert result.copies.avoided >= 3
    assert result.copies.remaining == 0
    assert result.unplanned == ()
    assert case.run(result).equal


def test_rows_are_cut_and_joined_where_they_lie() -> None:
    case = tiled(8, Limits(2, 96, 80))
    result = case.plan()
    assert (result.copies.avoided, result.copies.remaining) == (8, 0)
    assert case.run(result).equal


def test_columns_of_several_rows_are_copied_and_counted() -> None:
    case = tiled(8, Limits(8, 96, 16))
    result = case.plan()
    assert result.copies.remaining == 5
    assert result.copies.remaining_bytes == 8 * 80 * 4
    assert case.run(result).equal
