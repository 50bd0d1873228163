import re
from pathlib import Path

import onnx
import onnx_ir as ir

import onnxtile
from onnxtile.model.topology import (
    all_graphs,
    all_nodes,
    all_values,
    bodies_of,
    called_functions,
    graphs_in,
    has_body,
    nodes_inside,
    values_in,
)

NESTED = """<ir_version: 10, opset_import: ["": 17, "f": 1]>
nested (bool c, float[2] x) => (float[2] y) {
    [outer] y = If (c) <
        then_branch = t () => (float[2] a) {
            [inner] a = If (c) <
                then_branch = tt () => (float[2] b) { [deep] b = Abs (x) },
                else_branch = te () => (float[2] d) { [call] d = f.one (x) }
            >
        },
        else_branch = e () => (float[2] g) { [plain] g = Neg (x) }
    >
}
<domain: "f", opset_import: ["": 17, "f": 1]>
one (p) => (q) { [in_one] q = f.two (p) }
<domain: "f", opset_import: ["": 17]>
two (p) => (q) {
    [of_two] k = Constant <value = bool {1}> ()
    [if_two] q = If (k) <then_branch = u () => (v) { [in_two] v = Exp (p) }, else_branch = w () => (z) { z = Log (p) }>
}
<domain: "f", opset_import: ["": 17]>
unused (p) => (q) { q = Relu (p) }
"""


def nested() -> ir.Model:
    return ir.from_proto(onnx.parser.parse_model(NESTED))


def test_each_graph_comes_with_the_path_to_it() -> None:
    paths = [[f"{node.name}.{key}" for node, key in path] for path, _ in graphs_in(nested().graph)]
    outer = "outer.then_branch"
    assert paths == [[], [outer], [outer, "inner.then_branch"], [outer, "inner.else_branch"], ["outer.else_branch"]]


def test_bodies_in_a_list_have_their_position_in_the_key() -> None:
    bodies = [ir.Graph([], [], nodes=[], name=name) for name in "ab"]
    node = ir.Node("d", "Op", [], [ir.AttrGraphs("many", bodies), ir.AttrGraph("one", ir.Graph([], [], nodes=[]))])
    assert [(body.key, body.attribute, body.position) for body in bodies_of(node)] == [
        ("many.0", "many", 0),
        ("many.1", "many", 1),
        ("one", "one", None),
    ]


def test_a_body_that_the_caller_gives_is_not_entered() -> None:
    node = ir.Node("d", "Op", [], [ir.RefAttr("body", "given", ir.AttributeType.GRAPH)])
    assert has_body(node)
    assert bodies_of(node) == []
    assert list(nodes_inside(node)) == []


def test_nodes_values_and_graphs_of_functions_are_walked_too() -> None:
    model = nested()
    names = [node.name for node in all_nodes(model) if node.name]
    assert names == ["outer", "inner", "deep", "call", "plain", "in_one", "of_two", "if_two", "in_two"]
    assert {value.name for value in all_values(model)} >= {"x", "y", "b", "d", "g", "p", "q", "v"}
    assert len(list(all_graphs(model))) == 5 + 1 + 3 + 1


def test_values_of_a_body_stand_behind_their_node() -> None:
    assert [value.name for value in values_in(nested().graph)] == ["c", "x", "y", "a", "b", "d", "g"]


def test_functions_are_followed_through_calls_and_bodies() -> None:
    model = nested()
    assert [function.name for function in called_functions(all_nodes(model), model)] == ["one", "two"]
    assert called_functions([node for node in model.graph], model) == []


def test_no_other_module_looks_for_the_bodies_of_a_node() -> None:
    package = Path(onnxtile.__file__).parent
    looking = re.compile(r"AttributeType\.GRAPH|as_graphs\(")
    found = {str(file.relative_to(package)) for file in package.rglob("*.py") if looking.search(file.read_text())}
    # unfold copies the attributes themselves.
    assert found == {"model/topology.py", "shapes/opened_calls.py"}
