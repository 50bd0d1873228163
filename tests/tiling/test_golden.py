"""Before and after, as ONNX text. Weights stand in it with their type only; the test fills them in.

REGENERATE_GOLDEN=1 writes the after graphs anew: read the difference before you commit it.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import numpy_helper, parser, printer

from onnxtile.tiling.limits import Limits

if TYPE_CHECKING:
    from tests.tiling.conftest import Bench

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
