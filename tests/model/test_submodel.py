import re
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import onnxtile
from onnxtile.model.submodel import Submodels, bare_node, exposing, tensor_type
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
    proto = cut.of([nodes["scale"], nodes["shift"]], {values["x"]: FLOATS}, [values["b"]])
    assert [tensor.name for tensor in proto.graph.initializer] == ["w", "k"]
    found = cut.session(proto).run({"x": np.ones(2, np.float32)})
    assert found["b"].tolist() == [3.5, 4.5]


def test_constants_that_are_fed_are_not_in_the_model() -> None:
    model, nodes, values = whole()
    cut = Submodels(model)
    proto = cut.of([nodes["scale"]], {values["x"]: FLOATS, values["w"]: FLOATS}, [values["a"]])
    assert not proto.graph.initializer
    fed = {"x": np.ones(2, np.float32), "w": np.full(2, 7, np.float32)}
    assert cut.session(proto).run(fed)["a"].tolist() == [7, 7]


def test_functions_that_are_called_come_along_and_no_others() -> None:
    model, nodes, values = whole()
    cut = Submodels(model)
    proto = cut.of([nodes["call"]], {values["b"]: tensor_type(ir.DataType.FLOAT, None)}, [values["d"]])
    assert [function.name for function in proto.functions] == ["twice"]
    assert cut.session(proto).run({"b": np.ones(5, np.float32)})["d"].tolist() == [2] * 5  # of any rank and size


def test_a_body_reads_what_it_captures() -> None:
    model, nodes, values = whole()
    cut = Submodels(model)
    types = {values["c"]: tensor_type(ir.DataType.BOOL, ()), values["d"]: FLOATS}
    proto = cut.of([nodes["branch"]], types, [values["y"]])
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
        made.append(Submodels(m).of([node], types, node.outputs, names=names).SerializeToString(deterministic=True))
    assert made[0] == made[1]


def test_the_model_stays_as_it_is() -> None:
    model, nodes, values = whole()
    before = ir.to_proto(model).SerializeToString(deterministic=True)
    cut = Submodels(model)
    cut.session(cut.of([nodes["scale"]], {values["x"]: FLOATS}, [values["a"]]))
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
    proto = cut.of([nodes["scale"]], {values["x"]: tensor_type(ir.DataType.INT64, (2,))}, [values["a"]])
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
    # onnxruntime, of which nothing is run. A Resize alone says which elements it reads.
    assert found == {
        "model/submodel.py",
        "operators/families/resizing.py",
        "model/validity.py",
        "model/stream.py",
        "shapes/opened_calls.py",
        "shapes/contributed.py",
        "tiling/functions.py",
    }
