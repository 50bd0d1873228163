"""Calls of local functions and nested bodies: counted before anything writes them out."""

import sys
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any

import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper
from onnx_ir.passes.common import InlinePass

from onnxtile.model.functions import MOST_NESTED, inline_calls, require_bounded_calls
from onnxtile.model.load import load
from onnxtile.system.errors import ModelError
from tests import build
from tests.bench.large_graphs import functions


def calling(bodies: Sequence[Sequence[int | str]], main: Sequence[int]) -> onnx.ModelProto:
    """Return a model with a function for each of `bodies`: its nodes, each a call of another (its number) or an operator."""
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("f", 1)]
    functions = [
        helper.make_function("f", f"F{i}", ["v0"], [f"v{len(body)}"], _chain(body), opsets)
        for i, body in enumerate(bodies)
    ]
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2]) for name in ("v0", f"v{len(main)}")]
    graph = helper.make_graph(_chain(main), "g", ends[:1], ends[1:])
    return helper.make_model(graph, functions=functions, opset_imports=opsets, ir_version=9)


def _chain(body: Sequence[int | str]) -> list[onnx.NodeProto]:
    return [
        helper.make_node(one, [f"v{i}"], [f"v{i + 1}"])
        if isinstance(one, str)
        else helper.make_node(f"F{one}", [f"v{i}"], [f"v{i + 1}"], domain="f")
        for i, one in enumerate(body)
    ]


def doubling(levels: int) -> onnx.ModelProto:
    bodies: list[list[int | str]] = [["Relu"]]
    bodies += [[i, i] for i in range(levels)]
    return calling(bodies, [levels])


@pytest.mark.timeout(60)  # expanded, they would never end
@pytest.mark.parametrize("levels", [15, 30, 99])
def test_functions_that_each_call_the_one_before_twice_are_refused_at_once(levels: int) -> None:
    with pytest.raises(ModelError, match="expand to more than 20,000 nodes"):
        load(doubling(levels))


def test_calls_that_stand_for_some_thousand_nodes_are_taken() -> None:
    require_bounded_calls(doubling(12))


def test_a_large_model_may_expand_to_more_than_a_small_one() -> None:
    require_bounded_calls(calling([["Relu"] * 10], [0] * 3000))


@pytest.mark.parametrize(
    "bodies", [[[0]], [[1], [2], [0]], [["Relu", 1], [1, "Relu"]]], ids=["itself", "through others", "behind another"]
)
def test_a_function_that_calls_itself_is_refused(bodies: Sequence[Sequence[int | str]]) -> None:
    with pytest.raises(ModelError, match="calls itself"):
        load(calling(bodies, [0]))


def test_calls_may_lie_as_deep_as_the_checker_allows_and_no_deeper() -> None:
    levels: list[list[int | str]] = [["Relu"]]
    levels += [[i] for i in range(MOST_NESTED)]
    load(calling(levels[:-1], [MOST_NESTED - 1]))
    with pytest.raises(ModelError, match="more than 100 deep"):
        require_bounded_calls(calling(levels, [MOST_NESTED]))


def test_bodies_that_lie_too_deep_are_refused() -> None:
    model = onnx.ModelProto(ir_version=9)
    graph = model.graph
    for _ in range(MOST_NESTED + 1):
        graph = graph.node.add(op_type="If").attribute.add(name="then_branch").g
        graph.name = "g"
    with pytest.raises(ModelError, match="bodies"):
        require_bounded_calls(model)
    with pytest.raises(ModelError):
        load(model)


@pytest.mark.parametrize("inside", [False, True])
def test_an_attribute_of_the_caller_is_refused_where_nobody_calls(inside: bool) -> None:
    node = helper.make_node("Softmax", ["x"], ["y"])
    node.attribute.add(name="axis", type=onnx.AttributeProto.INT, ref_attr_name="axis")
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2]) for name in "xyz"]
    if inside:
        body = helper.make_graph([node], "body", [], ends[1:2])
        node = helper.make_node("If", ["c"], ["z"], then_branch=body, else_branch=body)
    choice = helper.make_tensor_value_info("c", TensorProto.BOOL, [])
    with pytest.raises(ModelError, match="Softmax outside of any function"):
        load(build.model([node], [ends[0], choice], [ends[2 if inside else 1]]))


@pytest.mark.parametrize(
    ("operator", "inputs", "outputs", "fits"),
    [
        ("If", 0, 1, True),
        ("If", 0, 0, False),
        ("If", 1, 1, False),
        ("Loop", 3, 2, True),
        ("Loop", 2, 2, False),
        ("Loop", 3, 1, False),
        ("Scan", 3, 1, True),
        ("Scan", 2, 1, True),
        ("Scan", 1, 1, False),
        ("Scan", 3, 0, False),
    ],
)
def test_a_body_takes_and_gives_what_its_node_does(operator: str, inputs: int, outputs: int, fits: bool) -> None:
    model = onnx.ModelProto(ir_version=9)
    node = model.graph.node.add(op_type=operator, input=["c"] if operator == "If" else ["a", "b", "c"], output=["y"])
    body = node.attribute.add(name="body").g
    body.node.add(op_type="Identity")
    for ends, count in ((body.input, inputs), (body.output, outputs)):
        for _ in range(count):
            ends.add()
    if fits:
        require_bounded_calls(model)
        return
    with pytest.raises(ModelError, match=f"a {operator} has"):
        require_bounded_calls(model)


@pytest.mark.parametrize(("call", "fits"), [("f(x)", True), ("f(x, x)", False), ("f()", True), ("g(x)", False)])
def test_a_call_gives_no_more_than_the_function_takes(call: str, fits: bool) -> None:
    results = "y, z" if call.startswith("g") else "y"
    model = onnx.parser.parse_model(
        '<ir_version: 10, opset_import: ["": 17, "local": 1]> '
        f"m (float[2] x) => (float[2] y) {{ {results} = local.{call.replace('g', 'f')} }} "
        '<domain: "local", opset_import: ["": 17]> f (a) => (b) { b = Relu(a) }'
    )
    if fits:
        require_bounded_calls(model)
        return
    with pytest.raises(ModelError, match="a call of the function 'f' has"):
        require_bounded_calls(model)


# Calls of local functions are written out as onnx_ir's pass writes them, in time linear in the calls.


def _branching() -> onnx.ModelProto:
    """Return a model whose function has an If, names that the main graph has too, and a node without a name."""
    return onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["": 17, "f": 1]>
        main (float[4] x, bool c) => (float[4] y) {
            t = f.Either (x, c)
            t_2 = f.Either (t, c)
            y = f.Either (t_2, c)
        }
        <domain: "f", opset_import: ["": 17]>
        Either (a, b) => (t) {
            t_3 = Neg (a)
            t = If (b) <
                then_branch = then () => (float[4] r) { r = Tanh (t_3) },
                else_branch = other () => (float[4] r) { t_3_2 = Exp (a)  r = Abs (t_3_2) }
            >
        }
    """)


@pytest.mark.parametrize("made", [functions(150), _branching()], ids=["functions", "branching"])
def test_names_are_those_of_the_pass(made: onnx.ModelProto) -> None:
    ours, theirs = ir.from_proto(made), ir.from_proto(made)
    inline_calls(ours)
    InlinePass()(theirs)
    assert [node.name for node in ours.graph.all_nodes()] == [node.name for node in theirs.graph.all_nodes()]
    assert len({value.name for node in ours.graph.all_nodes() for value in node.outputs}) > len(made.graph.node)
    onnx.checker.check_model(ir.to_proto(ours))


def test_a_function_that_stays_keeps_its_names() -> None:
    model = ir.from_proto(functions(100))
    kept = model.functions["large", "Scaled", ""]
    names = [(node.name, [value.name for value in node.outputs]) for node in kept]
    inline_calls(model, lambda function: function is not kept)
    assert list(model.functions.values()) == [kept]
    assert [(node.name, [value.name for value in node.outputs]) for node in kept] == names


def test_twice_the_calls_take_twice_the_steps() -> None:
    small, middle, large = (_lines(inline_calls, ir.from_proto(functions(size))) for size in (500, 1000, 2000))
    assert large - middle < 1.4 * 2 * (middle - small)


def _lines(work: Callable[[ir.Model], None], model: ir.Model) -> int:
    """Return how many lines of Python `work` executes."""
    count = 0

    def counting(_frame: FrameType, event: str, _argument: object) -> Any:
        nonlocal count
        count += event == "line"
        return counting

    before = sys.gettrace()
    sys.settrace(counting)
    try:
        work(model)
    finally:
        sys.settrace(before)
    return count
