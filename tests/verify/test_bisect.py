"""The first value that differs, and the rewrite that made it: faults put in by hand are found where they are."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import numpy_helper

from onnxtile import api
from onnxtile.tile.limits import Limits

Zoo = Callable[[str], Path]
LOOK = api.Comparing(bisect=True)


def text(graph: str, *, opset: int = 17) -> onnx.ModelProto:
    return onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["": {opset}]> {graph}')


def found(model: Any, other: Any, how: api.Comparing = LOOK) -> Any:
    verdict = api.verify(model, other, how=how)
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
    verdict = api.verify(one, two, how=LOOK)
    assert not verdict.equal
    assert verdict.bisection is None


def test_the_run_that_differs_is_the_one_looked_into() -> None:
    """These two differ on negative numbers only."""
    one, two = (
        text(f"g (float[9] x) => (float[9] y) {{ a = Identity(x)  y = {op}(a) }}") for op in ("Relu", "Identity")
    )
    how = api.Comparing(ranges={"x": (0.5, 1)}, edge=True, bisect=True)
    assert api.verify(one, two, how=api.Comparing(ranges={"x": (0.5, 1)})).equal
    assert not api.verify(one, two).equal
    assert api.verify(one, two, how=how).equal, "a range that the user gives holds at the edges, too"


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
