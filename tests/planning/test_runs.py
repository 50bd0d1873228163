"""The runs of bytes that a Slice reads: the planner and the check find them, each by its own code, as numpy does."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
from hypothesis import given, settings
from hypothesis import strategies as some

import onnxtile
from onnxtile.check.addresses import bytes_read
from onnxtile.check.graph import GraphModel
from onnxtile.check.reading import plain_model
from onnxtile.check.sharing import SharedStates
from onnxtile.kernels.aliases import MOST_RUNS, LayoutFacts, spans_read
from onnxtile.model.constants import Constants
from onnxtile.model.load import load
from onnxtile.shapes.resolve import resolve
from tests.planning.conftest import Case, rows

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
@settings(max_examples=60)
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
