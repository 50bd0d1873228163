"""Tests over attributes, constants, shapes and element types."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from onnxtile.system.errors import QueryError
from onnxtile.system.runtime import Array
from tests.query.conftest import Graphs, Small

TEXT = (
    "s=Softmax(x){axis=1};t=Softmax(s);m=Mul(t,H);g=Gemm(m,W,B){transB=1};"
    "c=Clip(g,,T);k=Constant(){value_float=0.5};d=Div(c,k);q=Sqrt(T);e=Pow(d,q);o=Or(p,P)"
)


@pytest.fixture(scope="module")
def small(graph: Graphs) -> Small:
    constants: dict[str, Array] = {
        "H": np.full((2, 2), 0.5, np.float32),
        "W": np.arange(4, dtype=np.float32).reshape(2, 2),
        "B": np.asarray([1.4142135, 2.0], np.float32),
        "T": np.asarray(2.0, np.float32),
        "P": np.asarray([True]),
    }
    return graph(TEXT, constants=constants, opset=17)


HOLDS = [
    # Attributes, and the defaults of the schema
    "s:Softmax[axis == 1]",
    "t:Softmax[axis == -1]",
    "s:Softmax[axis != -1]",
    "s:Softmax[axis in [1, 2]]",
    "s:Softmax[axis in []] or axis == 1]".replace("]] or", "] or"),
    "g:Gemm[transB == 1 and transA == 0 and alpha == 1]",
    "g:Gemm[transB]",
    "g:Gemm[not transA]",
    "s:Softmax[axis > 0]",
    "s:Softmax[axis >= 1 and axis <= 1 and not axis < 1]",
    # Constants
    "H:Producer[value == 0.5]",
    "k:Producer[value == 0.5]",
    "k:Constant[value_float == 0.5]",
    "q:Producer[value ≈ 1.4142135]",
    "q:Sqrt[value ≈ 1.41421356237]",
    "m:Mul[inputs[1].value == 0.5]",
    "m:Mul[constant == 0.5]",
    "d:Div[constant ≈ 0.5]",
    "g:Gemm[inputs[2].value[0] ≈ 1.41421356]",
    "g:Gemm[C.value[-1] == 2]",
    "g:Gemm[inputs[1].value == [[0, 1], [2, 3]]]",
    "g:Gemm[B.value in [[0, 1, 2, 3], [0]]]",
    "c:Clip[max == 2]",
    "o:Or[inputs[1].value == true]",
    # Shapes and types
    "s:Softmax[inputs[0].shape == [2, 2]]",
    "s:Softmax[shape == [2, 2] and rank == 2 and dtype == 'float']",
    "s:Softmax[outputs[0].shape[-1] == 2]",
    "T:Producer[rank == 0 and shape == [] and size == 1]",
    "k:Producer[dtype == 'float']",
    "g:Gemm[inputs[1].constant and not inputs[0].constant]",
    "g:Gemm[inputs[0].op == 'Mul']",
    "o:Or[dtype == 'bool']",
    # Any node: what it does not have is not known, which is no error
    "s:.[axis == 1]",
    "H:.[value == 0.5 and rank == 2]",
]
HOLDS = [case for case in HOLDS if case.count("[") == case.count("]")]


@pytest.mark.parametrize("case", HOLDS)
def test_a_test_holds(small: Small, case: str) -> None:
    name, _, query = case.partition(":")
    assert name in {match.to_dict()["root"] for match in small.matches(query)}


FAILS = [
    "Softmax[axis == 7]",
    "Clip[min == 0]",
    "Clip[min != 0]",
    "Clip[not min == 0]",
    "Mul[inputs[0].value == 1]",
    "Mul[inputs[7].value == 1]",
    "Gemm[not inputs[0].value == 1]",
    "Producer[value ≈ 0.5001]",
    "Producer[value == 1.41421356]",
    "Producer[axis == 1]",
    "Producer[value[0] == 9]",
    "Producer[value ≈ 'a']",
    "Producer[value == [1, [2]]]",
    "Producer[value ≈ [1, [2]]]",
    "Producer[inputs[0].value == 0.5 and rank == 2]",
    "Softmax[axis in []]",
    "Or[inputs[1].value ≈ 1]",
    "Gemm[B.value < [1, 2, 3]]",
]


@pytest.mark.parametrize("query", FAILS)
def test_a_test_fails_where_it_is_false_or_not_known(small: Small, query: str) -> None:
    assert small.find(query) == ""


ERRORS = [
    ("Softmax[axes == 1]", "axes", "Softmax has no 'axes'", "axis"),
    ("Gemm[transb == 1]", "transb", "Gemm has no 'transb'", "transB"),
    ("Relu[axis == 1]", "axis", "Relu has no 'axis'", None),
    ("Softmax[inputs[0].shap == [1]]", "inputs[0].shap", "unknown property 'shap'", None),
    ("Softmax[axis in 3]", "axis in 3", "what follows 'in' must be a list", None),
    ("Softmax[axis < 'a']", "axis < 'a'", "these cannot be compared", None),
    ("Softmax[shape < 3]", "shape < 3", "these cannot be compared", None),
    ("Softmax[axis[0] == 1]", "axis[0]", "this has no elements", None),
    ("Softmax[axis.shape == 1]", "axis.shape", "only nodes, their inputs", None),
]


@pytest.mark.parametrize(("query", "at", "reason", "hint"), ERRORS)
def test_a_test_that_makes_no_sense_is_an_error(
    small: Small, query: str, at: str, reason: str, hint: str | None
) -> None:
    with pytest.raises(QueryError) as caught:
        small.find(query)
    start, stop = caught.value.span
    assert query[start:stop] == at
    assert caught.value.reason.startswith(reason)
    assert hint is None or hint in str(caught.value.hint)


def test_what_every_operator_of_the_name_may_have_is_no_error(small: Small) -> None:
    assert small.find("LayerNorm[epsilon == 1]") == ""
    assert small.find("Softmax[axis == 7 or rank == 9]") == ""


@pytest.mark.parametrize(
    ("dtype", "value", "holds"),
    [
        (np.float32, 0.1, True),
        (np.float16, 0.1, True),
        (ml_dtypes.bfloat16, 0.1, True),
        (np.float64, 0.1, True),
        (np.float32, 0.1 * (1 + 1e-5), False),
        (np.float16, 0.1 * 1.01, False),
        (np.float32, float("inf"), False),
        (np.int64, 0, False),
    ],
)
def test_about_equal_is_equal_within_the_precision_of_the_type(
    graph: Graphs, dtype: type, value: float, holds: bool
) -> None:
    small = graph("a=Foo(x,K)", constants={"K": np.asarray([value], np.float64).astype(dtype)})
    assert bool(small.find("Producer[value ≈ 0.1]")) == holds
    assert small.find("Producer[value ≈ value]") == "K:{K}"


def test_dimensions_that_are_not_numbers_are_not_known(graph: Graphs) -> None:
    small = graph("a=Relu(x);b=Add(a,a);c=Foo(b)", shape=["N", 3])
    assert small.find("Relu[shape[1] == 3]") == "a:{a}"
    for test in ("shape[0] == 1", "shape[0] != 1", "shape[0] > 1", "shape == [1, 3]", "shape != [1, 3]", "rank == 9"):
        assert small.find(f"Relu[{test}]") == "", test
        assert small.find(f"Relu[not {test}]") == ("a:{a}" if test == "rank == 9" else ""), test
    assert small.find("Relu[shape != [1, 4]]") == "a:{a}"
    assert small.find("Relu[shape == inputs[0].shape]") == "a:{a}"
    assert small.find("Add[inputs[0].shape == inputs[1].shape]") == "b:{b}"


def test_what_is_not_known_decides_nothing(graph: Graphs) -> None:
    small = graph("a=Mul(x,y)")
    unknown = "inputs[0].value == 1"
    for test, found in (
        (f"{unknown} or rank == 2", True),
        (f"rank == 2 or {unknown}", True),
        (f"rank == 2 and {unknown}", False),
        (f"not ({unknown} and rank == 2)", False),
        (f"not ({unknown} and rank == 3)", True),
        (f"not ({unknown} or rank == 3)", False),
    ):
        assert bool(small.find(f"Mul[{test}]")) == found, test


def test_a_test_is_asked_again_where_the_anchor_is_named_again(graph: Graphs) -> None:
    small = graph("a=Relu(x);b=Softmax(a);c=Tanh(b)")
    assert small.find("Relu->Softmax#1;Softmax#1[axis == -1]->Tanh") == "a:{a,b,c}"
    assert small.find("Relu->Softmax#1;Softmax#1[axis == 0]->Tanh") == ""
    assert small.find("Relu#1->Softmax#1;Relu#1->Softmax#1[axis == 0]->Tanh") == ""


@pytest.mark.parametrize(
    ("reduction", "shape", "share"),
    [
        ("ReduceSum(x){axes=[1] keepdims=0}", (2, 8), 1 / 8),
        ("ReduceSum(x){axes=[0,-1]}", (2, 8), 1 / 16),
        ("ReduceSum(x){axes=[1]}", ("n", 8), 1 / 8),
        ("ReduceSum(x){axes=[0]}", ("n", 8), None),
        ("ReduceSum(x)", (2, 8), None),
        ("Relu(x)", (2, 8), None),
    ],
)
def test_the_share_of_one_element_in_a_mean(
    graph: Graphs, reduction: str, shape: tuple[int | str, ...], share: float | None
) -> None:
    small = graph(f"r={reduction}", shape=shape, opset=12)
    operator = reduction.partition("(")[0]
    assert small.find(f"{operator}[share > 0]") == ("" if share is None else "r:{r}")
    if share is not None:
        assert small.find(f"{operator}[share ≈ {share}]") == "r:{r}"
        assert small.find(f"{operator}[share ≈ {share * 1.001}]") == ""
