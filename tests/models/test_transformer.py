"""The model that ships: its script makes it, it is valid, it has the parts it promises, and it computes something."""

import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from numpy.typing import NDArray
from onnx import helper, numpy_helper

MODELS = Path(__file__).parents[2] / "models"
PATH = MODELS / "transformer.onnx"
BLOCKS, TOKENS = 12, 65

LAYER_NORM = ["ReduceMean", "Sub", "Pow", "ReduceMean", "Add", "Sqrt", "Div", "Mul", "Add"]
PROJECTIONS = ["MatMul", "Split", *["Add", "Reshape", "Transpose"] * 3]
ATTENTION = ["MatMul", "Div", "Softmax", "MatMul", "Transpose", "Reshape", "MatMul", "Add"]
MLP = ["MatMul", "Add", "Div", "Erf", "Add", "Mul", "Mul", "MatMul", "Add"]
BLOCK = [*LAYER_NORM, *PROJECTIONS, *ATTENTION, "Add", *LAYER_NORM, *MLP, "Add"]


@pytest.fixture(scope="module")
def model() -> onnx.ModelProto:
    return onnx.load(PATH)


@pytest.fixture(scope="module")
def runs(model: onnx.ModelProto) -> list[dict[str, NDArray[np.float32]]]:
    """Logits, softmaxes and block outputs for four random images."""
    traced = onnx.ModelProto()
    traced.CopyFrom(model)
    names = [n.name for n in model.graph.node if n.op_type == "Softmax" or n.name.endswith("/residual2")]
    traced.graph.output.extend(helper.make_empty_tensor_value_info(name) for name in names)
    session = ort.InferenceSession(traced.SerializeToString(), providers=["CPUExecutionProvider"])
    rng = np.random.default_rng(0)
    images = [rng.standard_normal((1, 3, 64, 64)).astype(np.float32) for _ in range(4)]
    outputs = ["logits", *names]
    return [dict(zip(outputs, session.run(outputs, {"image": image}), strict=True)) for image in images]


def test_the_script_reproduces_the_file(model: onnx.ModelProto, tmp_path: Path) -> None:
    out = tmp_path / "again.onnx"
    subprocess.run([sys.executable, MODELS / "make_transformer.py", out], check=True, capture_output=True)
    again = onnx.load(out)
    assert [str(n) for n in again.graph.node] == [str(n) for n in model.graph.node]
    assert [t.name for t in again.graph.initializer] == [t.name for t in model.graph.initializer]
    for ours, theirs in zip(again.graph.initializer, model.graph.initializer, strict=True):
        np.testing.assert_array_equal(numpy_helper.to_array(ours), numpy_helper.to_array(theirs), ours.name)
    same = out.read_bytes() == PATH.read_bytes()  # apart from the assert, which would print 2 MB
    assert same


def test_is_valid_with_every_shape_static(model: onnx.ModelProto) -> None:
    onnx.checker.check_model(model, full_check=True)
    inferred = onnx.shape_inference.infer_shapes(model, check_type=True, strict_mode=True, data_prop=True).graph
    values = {v.name: v for v in (*inferred.value_info, *inferred.output)}
    for node in model.graph.node:
        for output in node.output:
            dims = values[output].type.tensor_type.shape.dim
            assert dims, output
            assert all(d.HasField("dim_value") for d in dims), output


def test_says_what_it_is(model: onnx.ModelProto) -> None:
    assert [(o.domain, o.version) for o in model.opset_import] == [("", 14)]
    assert "make_transformer.py" in model.doc_string
    assert {p.key for p in model.metadata_props} == {"description", "license", "seed"}
    assert all(v.doc_string for v in (*model.graph.input, *model.graph.output))
    names = [n.name for n in model.graph.node]
    assert all(names)
    assert len(set(names)) == len(names)
    assert "block.3/attention/softmax" in names


def test_size() -> None:
    assert 1_500_000 < PATH.stat().st_size < 2_500_000


@pytest.mark.parametrize("index", range(BLOCKS))
def test_block_has_its_operators_in_order(model: onnx.ModelProto, index: int) -> None:
    assert [n.op_type for n in model.graph.node if n.name.startswith(f"block.{index}/")] == BLOCK


def test_operator_counts(model: onnx.ModelProto) -> None:
    count = Counter(n.op_type for n in model.graph.node)
    assert count["Sqrt"] == 2 * BLOCKS + 1  # LayerNorms
    assert count["Erf"] == count["Softmax"] == count["Split"] == BLOCKS
    assert count["MatMul"] == 6 * BLOCKS
    assert count["Conv"] == count["Gemm"] == 1


def test_weights_are_non_trivial(model: onnx.ModelProto) -> None:
    for tensor in model.graph.initializer:
        array = numpy_helper.to_array(tensor)
        if array.dtype == np.float32 and array.ndim:
            assert np.count_nonzero(array) == array.size, tensor.name
            assert array.std() > 0.02, tensor.name


def test_outputs_are_finite_and_depend_on_the_input(runs: list[dict[str, NDArray[np.float32]]]) -> None:
    logits = np.concatenate([run["logits"] for run in runs])
    assert logits.shape == (4, 100)
    assert np.isfinite(logits).all()
    assert logits.std(axis=1).min() > 0.3
    assert logits.std(axis=1).max() < 3
    assert logits.std(axis=0).min() > 0.01


@pytest.mark.parametrize("index", range(BLOCKS))
def test_block_keeps_values_in_range(runs: list[dict[str, NDArray[np.float32]]], index: int) -> None:
    for run in runs:
        tokens = run[f"block.{index}/residual2"]
        assert 0.5 < tokens.std() < 10
        assert tokens.std(axis=1).min() > 0.1  # the tokens have not become one


@pytest.mark.parametrize("index", range(BLOCKS))
def test_attention_is_neither_uniform_nor_one_hot(runs: list[dict[str, NDArray[np.float32]]], index: int) -> None:
    for run in runs:
        weights = run[f"block.{index}/attention/softmax"]
        assert weights.shape == (1, 3, TOKENS, TOKENS)
        entropy = -(weights * np.log(weights)).sum(axis=-1) / np.log(TOKENS)  # 0 is one-hot, 1 is uniform
        assert 0.5 < entropy.mean() < 0.98
        assert 1.5 / TOKENS < np.median(weights.max(axis=-1)) < 0.5
