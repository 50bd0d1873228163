import re
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import onnxtile
from onnxtile.model.submodel import Submodels, bare_node, exposing, tensor_type
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
from onnxtile.system.errors import ModelError

MODEL = """<ir_version: 8, opset_import: ["": 17, "f": 1]>
whole (float[2] x, bool c) => (float[2] y)
<float[2] w = {3.0, 4.0}, float k = {0.5}> {
    [scale] a = Mul (x, w)
    [shift] b = Add (a, k)
    [call] d = f.twice (b)
    [branch] y = If (c) <
        then_branch = t () => (float[2] p) { p = Add (d, w) },
        else_branch = e () => (float[2] q) { q = Neg (d) }
    >
}
<domain: "f", opset_import: ["": 17]>
twice (p) => (q) { q = Add (p, p) }
<domain: "f", opset_import: ["": 17]>
unused (p) => (q) { q = Neg (p) }
"""
FLOATS = tensor_type(ir.DataType.FLOAT, (2,))


def whole() -> tuple[ir.Model, dict[str, ir.Node], dict[str, ir.Value]]:
    model = ir.from_proto(onnx.parser.parse_model(MODEL))
    nodes = {node.name or "": node for node in model.graph}
    values = {value.name or "": value for value in (*model.graph.inputs, *model.graph.initializers.values())}
    return model, nodes, values | {value.name or "": value for node in model.graph for value in node.outputs}


def test_constants_that_are_not_fed_come_along() -> None:
    model, nodes, values = whole()
    cut = Submodels(model)
    proto = cut.model_of([nodes["scale"], nodes["shift"]], {values["x"]: FLOATS}, [values["b"]])
    assert [tensor.name for tensor in proto.graph.initializer] == ["w", "k"]
    found = cut.session(proto).run({"x": np.ones(2, np.float32)})
    assert found["b"].tolist() == [3.5, 4.5]


def test_constants_that_are_fed_are_not_in_the_model() -> None:
    model, nodes, values = whole()
    cut = Submodels(model)
    proto = cut.model_of([nodes["scale"]], {values["x"]: FLOATS, values["w"]: FLOATS}, [values["a"]])
    assert not proto.graph.initializer
    fed = {"x": np.ones(2, np.float32), "w": np.full(2, 7, np.float32)}
    assert cut.session(proto).run(fed)["a"].tolist() == [7, 7]


def test_functions_that_are_called_come_along_and_no_others() -> None:
    model, nodes, values = whole()
    cut = Submodels(model)
    proto = cut.model_of([nodes["call"]], {values["b"]: tensor_type(ir.DataType.FLOAT, None)}, [values["d"]])
    assert [function.name for function in proto.functions] == ["twice"]
    assert cut.session(proto).run({"b": np.ones(5, np.float32)})["d"].tolist() == [2] * 5  # of any rank and size


def test_a_body_reads_what_it_captures() -> None:
    model, nodes, values = whole()
    cut = Submodels(model)
    types = {values["c"]: tensor_type(ir.DataType.BOOL, ()), values["d"]: FLOATS}
    proto = cut.model_of([nodes["branch"]], types, [values["y"]])
    assert [tensor.name for tensor in proto.graph.initializer] == ["w"]
    assert cut.session(proto).run({"c": np.array(True), "d": np.ones(2, np.float32)})["y"].tolist() == [4, 5]


def test_equal_nodes_with_names_of_their_places_are_equal_bytes() -> None:
    model, nodes, values = whole()
    other, other_nodes, other_values = whole()
    other_nodes["scale"].name = other_nodes["scale"].doc_string = "another"
    other_nodes["scale"].metadata_props["pkg.x"] = "1"
    other_values["a"].name = "renamed"
    made = []
    for m, n, v in ((model, nodes, values), (other, other_nodes, other_values)):
        node = n["scale"]
        names = {value: f"v{i}" for i, value in enumerate((*node.inputs, *node.outputs)) if value is not None}
        types = {v["x"]: FLOATS, v["w"]: FLOATS}
        made.append(
            Submodels(m).model_of([node], types, node.outputs, names=names).SerializeToString(deterministic=True)
        )
    assert made[0] == made[1]


def test_the_model_stays_as_it_is() -> None:
    model, nodes, values = whole()
    before = ir.to_proto(model).SerializeToString(deterministic=True)
    cut = Submodels(model)
    cut.session(cut.model_of([nodes["scale"]], {values["x"]: FLOATS}, [values["a"]]))
    exposing(model, ["b", "w", "x"])
    assert ir.to_proto(model).SerializeToString(deterministic=True) == before
    assert len(list(values["x"].uses())) == 1


def test_inner_values_inputs_and_constants_are_exposed() -> None:
    model, _, _ = whole()
    found = exposing(model, ["b", "w", "x"]).run({"x": np.ones(2, np.float32), "c": np.array(False)})
    assert {name: array.tolist() for name, array in found.items()} == {"b": [3.5, 4.5], "w": [3, 4], "x": [1, 1]}


def test_a_model_that_onnxruntime_refuses_is_an_error() -> None:
    model, nodes, values = whole()
    cut = Submodels(model)
    proto = cut.model_of([nodes["scale"]], {values["x"]: tensor_type(ir.DataType.INT64, (2,))}, [values["a"]])
    with pytest.raises(ModelError, match="onnxruntime cannot load"):
        cut.session(proto)


def test_a_node_is_bare() -> None:
    node = ir.Node("", "Relu", [ir.Value(name="x")], name="n", doc_string="d", metadata_props={"k": "v"})
    node.outputs[0].name = "y"
    assert bare_node(node) == onnx.helper.make_node("Relu", ["x"], ["y"])


def test_no_other_module_makes_models_of_nodes() -> None:
    package = Path(onnxtile.__file__).parent
    making = re.compile(r"make_graph\(|make_model\(|ir\.Model\(")
    found = {str(file.relative_to(package)) for file in package.rglob("*.py") if making.search(file.read_text())}
    # A model as a whole without its weights, with its calls written out, or the body of a function to be inferred; and operators of
    # onnxruntime, of which nothing is run. A Resize alone says which elements it reads, and a product whether sums saturate.
    assert found == {
        "model/exact_products.py",
        "model/submodel.py",
        "operators/families/movement.py",
        "model/validity.py",
        "model/save.py",
        "shapes/opened_calls.py",
        "shapes/contributed.py",
        "tiling/tile.py",
    }


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
