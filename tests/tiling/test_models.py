"""Whole models: transformers, AlexNet, and files before and after as ONNX text."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import numpy_helper, parser, printer

from onnxtile import api
from onnxtile.model.binding import bind
from onnxtile.model.load import load
from onnxtile.model.save import to_bytes
from onnxtile.shapes.resolve import resolve
from onnxtile.system.runtime import Array, Feed, Session
from onnxtile.tiling.limits import Limits
from tests.bench.alexnet import make
from tests.tiling.conftest import Bench, Tiled

# Whole transformers: the demo model, and files as exporters wrote them where they are at hand.


ZOO = Path(__file__).parents[3] / "shared" / "zoo"


def feed(wanted: Feed, sizes: dict[str, int]) -> Array:
    """Return random numbers for an input: ids of few words, a mask of ones, or pixels."""
    random = np.random.default_rng(0)
    shape = [sizes[dim] if isinstance(dim, str) else dim or 1 for dim in wanted.shape]
    if "mask" in wanted.name:
        return np.ones(shape, np.int64)
    if "int64" in wanted.type:
        return random.integers(0, 100, shape)
    return random.standard_normal(shape).astype(np.float32)


def require_equal(source: Path, tiled: Tiled, sizes: dict[str, int]) -> None:
    """Assert that the tiled model computes what its source does, to the rounding of float32, and each tiled node too."""
    session = Session(source)
    feeds = {wanted.name: feed(wanted, sizes) for wanted in session.inputs}
    expected, got = session.run(feeds), tiled.run(feeds)
    assert list(expected) == list(got)
    for name, array in expected.items():
        np.testing.assert_allclose(got[name], array, rtol=1e-4, atol=1e-4 * float(np.abs(array).max()))
    assert all(verdict.passed for verdict in tiled.verdicts(runs=2)), tiled.verdicts()


def products_above(tiled: Tiled, bound: int) -> list[str]:
    """Return the MatMuls and Gemms with a side above `bound`, by shapes inferred from the bytes that would be saved."""
    fresh = load(onnx.load_from_string(to_bytes(tiled.model)))
    for node in fresh.graph.all_nodes():
        for value in node.outputs:
            if not value.is_graph_output():
                value.shape = None
    shapes = resolve(fresh)
    above = []
    for node in fresh.graph.all_nodes():
        if node.op_type not in {"MatMul", "Gemm"}:
            continue
        sides = [shapes.sizes(value) for value in node.inputs[:2] if value is not None]
        if any(side is None or max(side[-2:]) > bound for side in sides):
            above.append(f"{node.name}: {sides}")
    return above


def test_every_product_of_the_demo_model_fits_a_unit_of_64(bench: Bench, transformer: Path) -> None:
    tiled = bench.tile(load(transformer), Limits.of(max=64))
    assert len(tiled.result.tiled) == 2 * 6 + 1
    assert [skip.node for skip in tiled.result.skipped] == ["embedding/patch/conv"], "nobody asked to cut it"
    assert tiled.result.matmuls == 2 * (16 + 4 + 4 + 8 + 12 + 12) + 4
    assert not products_above(tiled, 64)
    require_equal(transformer, tiled, {})


@pytest.mark.parametrize(
    ("name", "sizes", "tiled_nodes"),
    [
        ("whisper_encoder_dy20", {}, 32),
        pytest.param("swin_ts14", {}, 59, marks=pytest.mark.slow),
        ("gpt2_dy20dyn", {"batch": 2, "seq": 40}, 73),
        pytest.param("bert_ts14dyn", {"batch": 2, "seq": 40}, 96, marks=pytest.mark.slow),
    ],
)
def test_exported_models_at_32(bench: Bench, name: str, sizes: dict[str, int], tiled_nodes: int) -> None:
    file = ZOO / f"{name}.onnx"
    if not file.exists():
        pytest.skip(f"{file} is not on this machine")
    source = load(file)
    bind(source, sizes, {})
    tiled = bench.tile(source, Limits.of(max=32))
    assert len(tiled.result.tiled) == tiled_nodes
    assert {skip.code for skip in tiled.result.skipped} <= {"within_limits", "not_requested"}
    require_equal(file, tiled, sizes)


@pytest.mark.parametrize("name", ["bert_dy20dyn", pytest.param("llama_ts14dyn_sim", marks=pytest.mark.slow)])
def test_exported_models_keep_the_batch_and_the_sequence_that_no_limit_holds(bench: Bench, name: str) -> None:
    file = ZOO / f"{name}.onnx"
    if not file.exists():
        pytest.skip(f"{file} is not on this machine")
    tiled = bench.tile(load(file), Limits(k=32, n=32))
    assert tiled.result.tiled
    assert {(skip.code, skip.bind) for skip in tiled.result.skipped} == {("unknown_size", "--dim seq=N")}
    for sizes in ({"batch": 1, "seq": 7}, {"batch": 3, "seq": 33}):
        require_equal(file, tiled, sizes)


def test_meta_ops_are_tiled_inside(bench: Bench, transformer: Path) -> None:
    fused = api.fuse(transformer, ["Linear", "ScaledDotProductAttention", "MultiHeadAttention"], verify=False).model
    tiled = bench.tile(fused, Limits.of(max=64))
    # Linear is called with four sizes, and each call of one size is cut in the same function.
    names = {site.node.split("/")[0] for site in tiled.result.tiled}
    assert {name.partition(".")[0] for name in names} <= {"Linear", "ScaledDotProductAttention", "MultiHeadAttention"}
    assert len([name for name in names if name.startswith("Linear")]) > 1
    assert {skip.code for skip in tiled.result.skipped} <= {"within_limits", "not_requested"}
    require_equal(transformer, tiled, {})


# AlexNet as it comes with onnx: its three large layers at the size of a 64 × 64 unit.


FILE = Path(onnx.__file__).parent / "backend/test/data/light/light_bvlc_alexnet.onnx"


@pytest.fixture(scope="module")
def tiled(bench: Bench) -> Tiled:
    """Return AlexNet at 64; that nothing is above 64 is asserted by the bench."""
    return bench.tile(onnx.load(FILE), Limits.of(max=256))


def test_its_layers_become_so_many_matmuls(tiled: Tiled) -> None:
    assert [site["matmuls"] for site in tiled.result.to_dict()["tiled"]] == [576, 256, 64]
    assert tiled.count("MatMul") == 576 + 256 + 64 and tiled.count("Gemm") == 0
    assert [skip.node for skip in tiled.result.skipped] == ["n0", "n4", "n8", "n10", "n12"]
    assert all("--conv" in skip.reason for skip in tiled.result.skipped), "its convolutions, which nobody asked to cut"
    blocks = 16 + 16 + 4
    assert tiled.count("Add") == 576 + 256 + 64 - blocks + 3, "a chain for each block, and the bias of each layer"
    assert len(tiled.nodes) == 1_799


def test_the_weights_that_operators_made_are_folded_and_gone(tiled: Tiled) -> None:
    left = {node.outputs[0].name for node in tiled.nodes if node.op_type == "ConstantOfShape"}
    assert {"fc6_w_0", "fc7_w_0", "fc8_w_0"}.isdisjoint(left) and "conv1_w_0" in left


@pytest.mark.slow
def test_its_outputs_are_the_same(tiled: Tiled) -> None:
    image = np.random.default_rng(0).standard_normal((1, 3, 224, 224)).astype(np.float32)
    expected = Session(FILE.read_bytes()).run({"data_0": image})["prob_1"]
    np.testing.assert_allclose(tiled.run({"data_0": image})["prob_1"], expected, rtol=1e-4, atol=1e-7)


def test_a_layer_like_its_own_with_weights_that_differ(bench: Bench) -> None:
    # All of AlexNet's weights are 0.02 in that file, which would hide two blocks in each other's place.
    case = bench.case(m=1, k=1024, n=500, trans_b=True, bias=(500,), constants="bc")
    tiled = bench.judge(case, Limits.of(max=64))
    assert tiled.result.matmuls == 128
    (verdict,) = tiled.verdicts()
    assert verdict.passed, verdict
    image: Array = case.feeds()["a"]
    expected = Session(case.model().SerializeToString()).run({"a": image})["y"]
    np.testing.assert_allclose(tiled.run({"a": image})["y"], expected, rtol=0, atol=1e-4 * np.abs(expected).max())


@pytest.mark.slow
def test_each_of_its_layers_passes_its_trials_with_weights_of_its_own(bench: Bench, tmp_path: Path) -> None:
    make(tmp_path / "alexnet.onnx")
    tiled = bench.tile(onnx.load(tmp_path / "alexnet.onnx"), Limits.of(max=64))
    verdicts = tiled.verdicts(runs=100)
    assert [verdict.node for verdict in verdicts] == [site.node for site in tiled.result.tiled] == ["n16", "n19", "n22"]
    assert all(verdict.passed and verdict.runs == 100 for verdict in verdicts), verdicts


# Before and after, as ONNX text. Weights stand in it with their type only; the test fills them in.


FOLDER = Path(__file__).parent.parent / "golden" / "tile"
CASES = sorted(path.name.removesuffix(".before.txt") for path in FOLDER.glob("*.before.txt"))
SMALL = 16


def before(name: str) -> onnx.ModelProto:
    """Return the model of a golden file, each value that no node makes given a weight of distinct numbers."""
    model = parser.parse_model((FOLDER / f"{name}.before.txt").read_text())
    for info in model.graph.value_info:
        dims = [d.dim_value for d in info.type.tensor_type.shape.dim]
        weight = np.arange(np.prod(dims), dtype=np.float32).reshape(dims) / np.float32(np.prod(dims))
        model.graph.initializer.append(numpy_helper.from_array(weight, info.name))
    return model


def without_weights(model: ir.Model) -> onnx.ModelProto:
    """Return the model with larger initializers as typed values only, and no marks, which ONNX text does not know."""
    proto: onnx.ModelProto = ir.to_proto(model)
    weights = [tensor for tensor in proto.graph.initializer if np.prod(tensor.dims) > SMALL]
    for tensor in weights:
        proto.graph.initializer.remove(tensor)
        if tensor.name not in {info.name for info in proto.graph.value_info}:
            info = onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims)
            proto.graph.value_info.append(info)
    return proto


def meaning(model: onnx.ModelProto) -> dict[str, Any]:
    """Return what a golden graph says."""
    graph = model.graph
    return {
        "nodes": [
            (
                node.name,
                node.op_type,
                list(node.input),
                list(node.output),
                {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute},
            )
            for node in graph.node
        ],
        "constants": {tensor.name: numpy_helper.to_array(tensor).tolist() for tensor in graph.initializer},
        "types": {i.name: str(i.type) for i in (*graph.value_info, *graph.input, *graph.output)},
        "inputs": [i.name for i in graph.input],
        "outputs": [i.name for i in graph.output],
        "opset": {o.domain: o.version for o in model.opset_import},
    }


@pytest.mark.parametrize("name", CASES)
def test_the_tiled_graph_is_the_golden_one(bench: Bench, name: str) -> None:
    tiled = bench.tile(before(name), Limits.of(max=64))
    after = without_weights(tiled.model)
    file = FOLDER / f"{name}.after.txt"
    if os.environ.get("REGENERATE_GOLDEN") == "1":
        file.write_text(printer.to_text(after) + "\n")
    assert meaning(after) == meaning(parser.parse_model(file.read_text()))
    assert after.ir_version == 10


@pytest.mark.parametrize("name", CASES)
def test_each_block_holds_its_part_of_the_weight(bench: Bench, name: str) -> None:
    source = before(name)
    weights = {tensor.name: numpy_helper.to_array(tensor) for tensor in source.graph.initializer}
    tiled = bench.tile(source, Limits.of(max=64))
    left = {n: v for n, v in tiled.model.graph.initializers.items() if "/b_k" in n and not n.endswith("_sizes")}
    assert bool(left) == ("w" in weights)
    for block_name, value in left.items():
        weight = weights["w"].T if "transB" in (FOLDER / f"{name}.before.txt").read_text() else weights["w"]
        k, n = (int(index) for index in re.findall(r"[kn](\d+)", block_name.split("/")[-1]))
        assert value.const_value is not None
        expected = weight[64 * k : 64 * k + 64, 64 * n : 64 * n + 64]
        np.testing.assert_array_equal(value.const_value.numpy(), expected)
    assert "w" not in tiled.model.graph.initializers


def test_the_sizes_of_the_milestone_are_there() -> None:
    assert {"gemm_32x64x128", "gemm_128x128x128", "matmul_128x128x128"} <= set(CASES)
