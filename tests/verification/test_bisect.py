"""The first value that differs, and the rewrite that made it: faults put in by hand are found where they are."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import numpy_helper

from onnxtile import api
from onnxtile.tiling.limits import Limits
from tests.build import parsed as text

Zoo = Callable[[str], Path]
LOOK: dict[str, Any] = {"bisect": True}


def found(model: Any, other: Any, how: dict[str, Any] = LOOK) -> Any:
    verdict = api.verify(model, other, **how)
    assert not verdict.equal
    assert verdict.bisection is not None
    return verdict.bisection


def test_a_meta_op_that_is_wrong_is_named_with_its_pattern(zoo: Zoo) -> None:
    fused = api.fuse(zoo("bert_ts14_sim"), ["LayerNorm", "GeLU"], verify=False).model
    calls = [node for node in fused.graph if node.op_type.startswith("GeLU")]
    (function,) = {
        fused.functions[call.op_identifier()].name: fused.functions[call.op_identifier()] for call in calls
    }.values()
    constant = next(node for node in function if node.op_type == "Constant")
    value = constant.attributes["value"].as_tensor().numpy()
    constant.attributes["value"] = ir.AttrTensor("value", ir.tensor(value * np.float32(1.01)))
    bisection = found(zoo("bert_ts14_sim"), fused)
    assert bisection.rewrite == "fuse: the pattern GeLU"
    assert bisection.node == calls[0].name
    assert bisection.error.name == calls[0].outputs[0].name
    assert bisection.agreeing > 0


def test_a_tile_in_the_wrong_place_is_named_with_its_layer() -> None:
    weight = np.random.default_rng(0).standard_normal((8, 8)).astype(np.float32)
    model = text("g (float[4,8] x) => (float[4,8] y) { h = MatMul(x, w)  k = Relu(h)  y = MatMul(k, w) }")
    model.graph.initializer.append(numpy_helper.from_array(weight, "w"))
    tiled = api.tile(model, Limits.of(max=4)).model
    second = [node for node in tiled.graph if node.op_type == "Concat"][-1]
    left, right = second.inputs[:2]
    second.replace_input_with(0, right)
    second.replace_input_with(1, left)
    bisection = found(model, tiled)
    assert bisection.error.name == "y"
    assert bisection.rewrite == "tile: a part of MatMul 'y'"
    assert bisection.original_op == "MatMul"


def test_a_weight_that_differs_is_named(zoo: Zoo) -> None:
    other = onnx.load(zoo("bert_ts14_sim"))
    tensor = [t for t in other.graph.initializer if len(t.dims) == 2][9]
    array = numpy_helper.to_array(tensor).copy()
    array[0] *= 1.5
    tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))
    bisection = found(zoo("bert_ts14_sim"), other)
    assert tensor.name in bisection.rewrite
    reader = next(node for node in other.graph.node if tensor.name in node.input)
    assert bisection.error.name == reader.output[0]


@pytest.mark.parametrize(
    ("one", "two", "rewrite"),
    [
        ("b = Relu(a)", "b = Abs(a)", "Relu became Abs"),
        ("b = LeakyRelu <alpha = 0.1> (a)", "b = LeakyRelu <alpha = 0.2> (a)", "the attribute alpha differs"),
    ],
)
def test_nodes_that_differ_without_a_rewrite(one: str, two: str, rewrite: str) -> None:
    first, second = (text(f"g (float[9] x) => (float[9] y) {{ a = Neg(x)  {b}  y = Exp(b) }}") for b in (one, two))
    bisection = found(first, second)
    assert bisection.rewrite.startswith(rewrite)
    assert (bisection.error.name, bisection.agreeing) == ("b", 1)


def test_many_values_are_looked_at_a_few_at_once() -> None:
    chain = " ".join(f"v{i + 1} = Neg(v{i})" for i in range(150))
    one, two = (
        text(f"g (float[9] v0) => (float[9] y) {{ {chain}  h = {op}(v150)  y = Abs(h) }}") for op in ("Neg", "Exp")
    )
    bisection = found(one, two)
    assert (bisection.error.name, bisection.agreeing) == ("h", 150)


def test_models_that_share_no_value_have_no_first_difference() -> None:
    one = text("g (float[9] x) => (float[9] y) { y = Neg(x) }")
    two = text("g (float[9] x) => (float[9] z) { z = Abs(x) }")
    verdict = api.verify(one, two, **LOOK)
    assert not verdict.equal
    assert verdict.bisection is None


def test_the_run_that_differs_is_the_one_looked_into() -> None:
    """These two differ on negative numbers only."""
    one, two = (
        text(f"g (float[9] x) => (float[9] y) {{ a = Identity(x)  y = {op}(a) }}") for op in ("Relu", "Identity")
    )
    how: dict[str, Any] = {"inputs": {"x": (0.5, 1)}, "edge": True, "bisect": True}
    assert api.verify(one, two, inputs={"x": (0.5, 1)}).equal
    assert not api.verify(one, two).equal
    assert api.verify(one, two, **how).equal, "a range that the user gives holds at the edges, too"


def test_the_command_says_what_and_where(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from onnxtile import cli

    for name, op in (("a", "Relu"), ("b", "Abs")):
        onnx.save(text(f"g (float[N] x) => (float[N] y) {{ h = {op}(x)  y = Neg(h) }}"), tmp_path / f"{name}.onnx")
    monkeypatch.setattr(
        "sys.argv", ["onnxtile", "verify", str(tmp_path / "a.onnx"), str(tmp_path / "b.onnx"), "--bisect"]
    )
    with pytest.raises(SystemExit) as end:
        cli.main()
    assert end.value.code == 1
    out = capsys.readouterr().out
    assert "Relu became Abs" in out
    assert "N=2" in out
    assert "at [" in out


def renamed(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return `model` with other names for all that its nodes make and for its weights, but not for inputs and outputs."""
    copy = onnx.ModelProto.FromString(model.SerializeToString())
    kept = {value.name for value in (*copy.graph.input, *copy.graph.output)}

    def new(name: str) -> str:
        return name if name in kept or not name else f"other/{name}"

    for node in copy.graph.node:
        node.name = f"other/{node.name}"
        node.input[:] = map(new, node.input)
        node.output[:] = map(new, node.output)
    for tensor in copy.graph.initializer:
        tensor.name = new(tensor.name)
    del copy.graph.value_info[:]
    return copy


def test_values_whose_names_changed_are_paired_by_structure(transformer: Path) -> None:
    """A weight in the middle differs: the product that reads it is named, and not the last node."""
    model = onnx.load(transformer)
    other = renamed(model)
    tensors = [t for t in other.graph.initializer if len(t.dims) == 2 and min(t.dims) > 1]
    tensor = tensors[len(tensors) // 2]
    array = numpy_helper.to_array(tensor).copy()
    array[0] += 1
    tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))
    bisection = found(model, other)
    reader = next(node for node in other.graph.node if tensor.name in node.input)
    assert bisection.error.name == reader.output[0]
    assert bisection.node == reader.name
    assert bisection.node == f"other/{bisection.original}"
    assert bisection.rewrite.startswith(f"the constant {tensor.name!r}, its input ")
    assert len(bisection.layers) == sum(len(node.output) for node in model.graph.node) > 100
    assert all(layer.error.name in {layer.original, f"other/{layer.original}"} for layer in bisection.layers)
    assert all(layer.error.equal for layer in bisection.layers[: bisection.agreeing])


def test_nodes_alike_are_paired_by_their_constants_and_not_by_their_place() -> None:
    one = text(
        "g (float[4] x) => (float[4] y) <float a = {1.0}, float b = {2.0}, float c = {3.0}>"
        " { p = Add(x, a)  q = Add(x, b)  r = Add(x, c)  s = Mul(p, q)  y = Div(s, r) }"
    )
    two = text(
        "g (float[4] x) => (float[4] y) <float a = {1.0}, float b = {2.5}, float c = {3.0}>"
        " { v3 = Add(x, c)  v1 = Add(x, a)  v2 = Add(x, b)  v4 = Mul(v1, v2)  y = Div(v4, v3) }"
    )
    bisection = found(one, two)
    pairs = {layer.error.name: layer.original for layer in bisection.layers}
    assert pairs == {"v1": "p", "v2": "q", "v3": "r", "v4": "s", "y": "y"}
    assert (bisection.error.name, bisection.rewrite) == ("v2", "the constant 'b', its input 1, differs")


def test_it_says_where_nothing_could_be_paired() -> None:
    one = text("g (float[4] x) => (float[4] y) { a = Exp(x)  b = Neg(a)  y = Tanh(b) }")
    two = text("g (float[4] x) => (float[4] y) { c = Abs(x)  d = Cos(c)  y = Tanh(d) }")
    bisection = found(one, two)
    assert (bisection.node, bisection.op, bisection.original, bisection.original_op) == (None, None, None, None)
    assert "no inner values of the two models could be paired" in bisection.rewrite
    said = bisection.to_dict()
    assert said["node"] is None and [layer["name"] for layer in said["layers"]] == ["y"]


def test_it_says_what_the_first_difference_reads_that_has_no_partner() -> None:
    one = text("g (float[4] x) => (float[4] y) { a = Exp(x)  b = Neg(a)  y = Tanh(b) }")
    two = text("g (float[4] x) => (float[4] y) { c = Exp(x)  d = Cos(c)  y = Tanh(d) }")
    bisection = found(one, two)
    assert (bisection.node, bisection.agreeing) == ("y", 1)
    assert "'d', an input of the node, has no counterpart" in bisection.rewrite


def test_a_constant_is_no_first_difference() -> None:
    one, two = (
        text(f"g (float[4] x) => (float[4] y) {{ c = Constant <value_float = {n}> ()  a = Neg(x)  y = Add(a, c) }}")
        for n in (1.0, 2.0)
    )
    bisection = found(one, two)
    assert (bisection.error.name, bisection.op, bisection.agreeing) == ("y", "Add", 1)
    assert bisection.rewrite == "the constant 'c', its input 1, differs"


def test_the_error_of_each_layer_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from onnxtile import cli

    for name, scale in (("a", 1.0), ("b", 1.5)):
        graph = f"g (float[4] x) => (float[4] y) <float k = {{{scale}}}> {{ h{name} = Mul(x, k)  y = Neg(h{name}) }}"
        onnx.save(text(graph), tmp_path / f"{name}.onnx")
    line = ["onnxtile", "verify", str(tmp_path / "a.onnx"), str(tmp_path / "b.onnx"), "--bisect"]
    for more in ([], ["--json", "-"]):
        monkeypatch.setattr("sys.argv", [*line, *more])
        with pytest.raises(SystemExit):
            cli.main()
    out = capsys.readouterr().out
    table, _, content = out.partition("{")
    assert "2 values of both, the first 0 without error" in table
    assert table.splitlines()[-2].split()[:2] == ["hb", "ha"]
    layers = json.loads("{" + content)["bisect"]["layers"]
    assert [(layer["name"], layer["original"], layer["equal"]) for layer in layers] == [
        ("hb", "ha", False), ("y", "y", False),
    ]  # fmt: skip
    assert all(layer["max_abs"] > 0 and layer["max_rel"] == pytest.approx(0.5, rel=1e-3) for layer in layers)
    assert layers[0]["tolerance"] == pytest.approx(1e-4)
