"""The floor of fit: bytes that no schedule goes below, known without a search."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from hypothesis import HealthCheck, given, settings

import onnxtile
from onnxtile.fitting.floor import floor_of
from onnxtile.fitting.network import FitKernel, FitTensor, Network
from onnxtile.fitting.regions import Regions
from onnxtile.fitting.search import FitTarget, search
from onnxtile.operators.reads import AxisLink
from onnxtile.system.errors import Infeasible
from onnxtile.verbs.fit import FitOptions
from onnxtile.verbs.flows.fit import read_subject, unblocked_subject
from tests.fitting.networks import model
from tests.fitting.random_nets import nets


def network(*, is_cut: bool) -> Network:
    """Return three kernels on rows of 64 bytes; the one in the middle may not be cut into rows."""
    tensors = [FitTensor(name, (8, 64), 1, 0, is_outside=name == "x", is_kept=name == "c") for name in "xabc"]
    rows = (AxisLink(0),)
    links = (rows, rows if is_cut else None, rows)
    return Network(tensors, [FitKernel(f"k{n}", (n,), (n + 1,), link) for n, link in enumerate(links)])


def test_a_kernel_that_is_not_cut_has_its_operands_and_results_whole() -> None:
    floor = floor_of(Regions(network(is_cut=False)))
    assert (floor.bytes, floor.kernel) == (2 * 8 * 64, 1)
    assert [(piece.tensor, piece.bytes, piece.is_whole) for piece in floor.pieces] == [(1, 512, True), (2, 512, True)]


def test_where_all_kernels_are_cut_the_outputs_are_left() -> None:
    floor = floor_of(Regions(network(is_cut=True)))
    assert (floor.bytes, floor.kernel) == (8 * 64, None)
    assert [piece.tensor for piece in floor.pieces] == [3]


@settings(max_examples=4, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(nets())
def test_no_schedule_is_below_the_floor(made: onnx.ModelProto) -> None:
    about = unblocked_subject(read_subject(FitOptions(made, capacity=1, verify=False))).regions
    floor = floor_of(about)
    assert 0 < floor.bytes <= search(about, FitTarget(None, 0.5)).peak
    assert sum(piece.bytes for piece in floor.pieces) in {0, floor.bytes}


def test_below_the_floor_the_kernel_and_the_missing_rule_are_named_without_a_search() -> None:
    made = model(
        """
g (float[1,4,32,32] x) => (float[1,4,16,16] y) {
    [wide] a = Relu(x)
    [sums] b = CumSum(a, axis)
    [soft] c = Sigmoid(b)
    [pool] y = MaxPool<kernel_shape=[2,2], strides=[2,2]>(c)
}"""
    )
    made.graph.initializer.append(onnx.numpy_helper.from_array(np.array(2), "axis"))
    with pytest.raises(Infeasible) as error:
        onnxtile.fit(made, capacity=30_000)
    text = str(error.value)
    assert "no way to cut the model takes less than 32,768 bytes; while sums runs" in text
    assert "a (16,384 bytes), b (16,384 bytes) live; sums: " in text
