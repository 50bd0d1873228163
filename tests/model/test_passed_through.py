"""Outputs that are inputs or initializers, or listed twice: the file describes them several times, and all descriptions stay."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import onnx
import pytest

import onnxtile
from onnxtile.model.load import load
from onnxtile.model.save import to_bytes

TEXT = """<ir_version: 10, opset_import: ["": 17]>
  g (float[N, 3] x, bool go) => (float[N, M] x, float[2] w, float[N, 3] y, float[N, 3] z) <float[2] w = {1, 2}, int64 n = {2}> {
    s = Sigmoid(x)
    u = Mul(x, s)
    y, z = Loop(n, go, u, x) <body = b (int64 turn, bool on, float[N, 3] v, float[N, 3] r)
      => (bool on, float[N, 3] t, float[N, 3] t) { t = Neg(v) }>
  }"""


def _model() -> onnx.ModelProto:
    model = onnx.parser.parse_model(TEXT)
    body = model.graph.node[2].attribute[0].g
    lists = [model.graph.input, model.graph.output, body.input, body.output]
    for place, infos in enumerate(lists):
        for info in infos:
            info.doc_string = f"{info.name} of list {place}"
            info.metadata_props.add(key=f"key {place}", value=info.name)
    return model


def _bytes(model: onnxtile.api.Source, _folder: Path) -> onnx.ModelProto:
    return onnx.ModelProto.FromString(to_bytes(load(model)))


def _file(model: onnxtile.api.Source, folder: Path) -> onnx.ModelProto:
    onnxtile.save(load(model), folder / "saved.onnx")
    return onnx.load(folder / "saved.onnx")


def _descriptions(model: onnx.ModelProto) -> list[list[tuple[bytes, str, dict[str, str]]]]:
    body = next(node for node in model.graph.node if node.op_type == "Loop").attribute[0].g
    lists = [model.graph.input, model.graph.output, body.input, body.output, model.graph.value_info]
    return [
        [(str(one.type).encode(), one.doc_string, {p.key: p.value for p in one.metadata_props}) for one in infos]
        for infos in lists
    ]


@pytest.mark.parametrize("written", [_bytes, _file])
def test_both_descriptions_are_written(written: Callable[..., onnx.ModelProto], tmp_path: Path) -> None:
    model = _model()
    got = _descriptions(written(model, tmp_path))
    assert got[:4] == _descriptions(model)[:4]
    assert all("w of" not in doc for _, doc, _ in got[4])


@pytest.mark.parametrize("written", [_bytes, _file])
def test_unfuse_gives_both_back(written: Callable[..., onnx.ModelProto], tmp_path: Path) -> None:
    model = _model()
    fused = onnxtile.fuse(model, ["SiLU"])
    assert fused.fused == 1
    restored = onnxtile.unfuse(written(fused.model, tmp_path)).model
    assert _descriptions(written(restored, tmp_path))[:4] == _descriptions(model)[:4]


def test_value_info_that_the_file_has_stays(tmp_path: Path) -> None:
    model = _model()
    model.graph.value_info.append(onnx.helper.make_tensor_value_info("w", onnx.TensorProto.FLOAT, [2]))
    assert "w" in {info.name for info in _bytes(model, tmp_path).graph.value_info}


def test_the_sizes_of_the_input_count() -> None:
    """The output leaves open what the input says: shape inference must not forget it."""
    (x, *_) = load(_model()).graph.inputs
    assert str(x.shape) == "[N,3]"
    planned = onnxtile.plan(_model(), dims={"N": 4})
    assert not planned.plan.unplanned


def test_a_bound_size_is_bound_in_both(tmp_path: Path) -> None:
    planned = onnxtile.plan(_model(), dims={"N": 4}, io="inside").model
    graph = _bytes(planned, tmp_path).graph
    for info in (graph.input[0], graph.output[0]):
        assert [dim.dim_value for dim in info.type.tensor_type.shape.dim] == [4, 3]
    assert {p.key for p in graph.output[0].metadata_props} >= {"key 1", "pkg.onnxtile.offset"}
    assert "key 0" not in {p.key for p in graph.output[0].metadata_props}


@pytest.mark.parametrize("written", [_bytes, _file])
def test_each_tensor_is_annotated_once(written: Callable[..., onnx.ModelProto], tmp_path: Path) -> None:
    model = _model()
    body = model.graph.node[2].attribute[0].g
    for graph, names in ((model.graph, "xwyus"), (body, "tr")):
        for name in names:
            pair = onnx.StringStringEntryProto(key="SCALE_TENSOR", value=name)
            graph.quantization_annotation.add(tensor_name=name, quant_parameter_tensor_names=[pair])
    got = written(model, tmp_path)
    again = next(node for node in got.graph.node if node.op_type == "Loop").attribute[0].g
    assert sorted(one.tensor_name for one in got.graph.quantization_annotation) == sorted("xwyus")
    assert sorted(one.tensor_name for one in again.quantization_annotation) == ["r", "t"]
