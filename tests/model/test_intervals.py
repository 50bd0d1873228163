"""Intervals: whatever the operands are between their bounds, the results are between theirs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import helper
from onnx.reference import ReferenceEvaluator

from onnxtile.shapes.propagation import Interval, keeps_its_sign
from onnxtile.shapes.propagation import interval_results as results
from onnxtile.system.runtime import Array

_COUNTS = {"Where": 3, "Neg": 1, "Not": 1, "Identity": 1, "ReduceSum": 1, "ReduceMax": 1, "ReduceProd": 1}
_NAMES = (
    *("Add", "Concat", "Div", "Equal", "Greater", "GreaterOrEqual", "Identity", "Less", "LessOrEqual", "Max", "Min"),
    *("Mul", "Neg", "ReduceMax", "ReduceProd", "ReduceSum", "Sub", "Where"),
)


def evaluate(operator: str, operands: Sequence[Array | None]) -> list[Array]:
    names = [f"i{place}" for place in range(len(operands))]
    attributes: dict[str, Any] = {"axis": 0} if operator == "Concat" else {}
    node = helper.make_node(operator, names, ["y"], **attributes)
    infos = [helper.make_value_info(name, helper.make_tensor_type_proto(7, None)) for name in (*names, "y")]
    graph = helper.make_graph([node], "g", infos[:-1], infos[-1:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)
    return list(map(np.asarray, ReferenceEvaluator(model).run(None, dict(zip(names, operands, strict=True)))))


@given(
    st.sampled_from(_NAMES),
    st.lists(st.lists(st.integers(-3, 9), min_size=9, max_size=9), min_size=3, max_size=3),
)
def test_results_lie_in_their_intervals(operator: str, drawn: list[list[int]]) -> None:
    operands, actual = [], []
    for place, numbers in enumerate(drawn[: _COUNTS.get(operator, 2)]):
        rows = np.sort(np.asarray(numbers).reshape(3, 3), axis=0)
        if operator == "Where" and not place:
            rows = rows > 3
        operands.append((rows[0], rows[2]))
        actual.append(rows[1])
    found = results(operator, operands, lambda numbers: evaluate(operator, numbers))
    if found is None:
        assert operator in {"Div", "Mul", "ReduceProd"}
        return
    (least, most), (result,) = found[0], evaluate(operator, actual)
    assert (least <= result).all()
    assert (result <= most).all()


@pytest.mark.parametrize(
    ("operator", "operands"),
    [
        ("Mod", [([1], [5]), ([3], [3])]),
        ("Gather", [([1, 2], [1, 2]), ([0], [1])]),
        ("Range", [([0], [1]), ([4], [4]), ([1], [1])]),
        ("Div", [([1], [5]), ([0], [3])]),
    ],
)
def test_nothing_is_said_where_nothing_is_known(operator: str, operands: list[tuple[list[int], list[int]]]) -> None:
    intervals: list[Interval | None] = [(np.asarray(low), np.asarray(high)) for low, high in operands]
    assert results(operator, intervals, lambda _: pytest.fail("nothing is to be computed")) is None


def test_elements_that_may_not_be_there_count_as_0() -> None:
    ends = iter([[np.asarray([2])], [np.asarray([2, 3])]])
    (found,) = results("Slice", [(np.asarray([2, 3]), np.asarray([2, 3]))], lambda _: next(ends)) or []
    assert [end.tolist() for end in found] == [[0, 0], [2, 3]]


def test_a_sign_is_kept_or_not() -> None:
    assert keeps_its_sign((np.asarray([0, -4]), np.asarray([3, -1])))
    assert not keeps_its_sign((np.asarray([-1]), np.asarray([0])))
