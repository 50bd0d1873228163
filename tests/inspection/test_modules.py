"""Sums over modules: each is the sum of what is inside, and the first that of the model."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from onnxtile import api
from onnxtile.inspection.layers import Module
from onnxtile.report.inspect_tables import for_inspect
from onnxtile.system.errors import UsageError


def model(names: tuple[str, ...]) -> onnx.ModelProto:
    """Return products by 4×4 weights, one after another, the last by the weight of the first."""
    weights = [*(f"w{at}" for at in range(len(names) - 1)), "w0"]
    nodes = [
        helper.make_node("MatMul", [f"x{at}", weight], [f"x{at + 1}"], name=name)
        for at, (name, weight) in enumerate(zip(names, weights, strict=True))
    ]
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [2, 4]) for name in ("x0", f"x{len(names)}"))
    held = [numpy_helper.from_array(np.ones((4, 4), np.float32), weight) for weight in weights[:-1]]
    graph = helper.make_graph(nodes, "g", [x], [y], held)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.mark.parametrize(
    "names",
    [
        ("/a/0/fc/MatMul", "/a/1/fc/MatMul", "/b/MatMul", "/a/1/MatMul", "top"),
        ("a.0.fc.mm", "a.1.fc.mm", "b.mm", "a.1.mm", "top"),
    ],
)
def test_modules_by_the_names_of_their_nodes(names: tuple[str, ...]) -> None:
    found = api.inspect(model(names), tree=True)
    assert found.modules is not None

    def row(one: Module) -> tuple[object, ...]:
        return one.name, one.depth, one.nodes, one.parameters, one.macs, one.flops - one.macs, one.read, one.written

    # 2×4×4 MACs, 32 bytes and a weight of 64 read, 32 written by each; the last reads the weight of the first again.
    assert [row(one) for one in found.modules] == [
        ("", 0, 5, 64, 160, 160, 480, 160),
        ("a", 1, 3, 48, 96, 96, 288, 96),
        ("a.0", 2, 1, 16, 32, 32, 96, 32),
        ("a.0.fc", 3, 1, 16, 32, 32, 96, 32),
        ("a.1", 2, 2, 32, 64, 64, 192, 64),
        ("a.1.fc", 3, 1, 16, 32, 32, 96, 32),
        ("b", 1, 1, 16, 32, 32, 96, 32),
    ]
    assert found.modules[0].parameters == found.parameters.elements
    assert found.to_dict()["tree"][1]["module"] == "a"
    assert "tree" not in api.inspect(model(names)).to_dict()


def scoped(layers: int) -> onnx.ModelProto:
    """Return layers of two products and a sum, as PyTorch exports them: the metadata has the modules, and names say nothing."""
    made = model(tuple(f"n{at}" for at in range(2 * layers)))
    for at, node in enumerate(made.graph.node):
        layer, part = divmod(at, 2)
        scopes = ["", "blocks", f"blocks.{layer}", f"blocks.{layer}.fc{part}", "matmul"]
        classes = ["my.Net", "torch.nn.Sequential", "my.Block", "torch.nn.Linear", "aten.matmul"]
        for key, texts in (("name_scopes", scopes), ("class_hierarchy", classes)):
            node.metadata_props.add(key=f"pkg.torch.onnx.{key}", value=repr(texts))
    return made


def lines(content: dict[str, object]) -> list[list[str]]:
    """Return the cells of the tables of `inspect`, row by row."""
    tables = [part for part in for_inspect(content) if hasattr(part, "columns")]
    return [
        [str(cell) for cell in row]
        for one in tables
        for row in zip(*(column.cells for column in one.columns), strict=True)
    ]


def test_equal_modules_are_one_row_with_a_count() -> None:
    found = api.inspect(scoped(3), tree=True)
    assert found.modules is not None
    assert [one.name for one in found.modules][:5] == ["", "blocks", "blocks.0", "blocks.0.fc0", "blocks.0.fc1"]
    assert [one.kind for one in found.modules][:4] == ["my.Net", "torch.nn.Sequential", "my.Block", "torch.nn.Linear"]
    rows = lines(found.to_dict())
    start = next(at for at, row in enumerate(rows) if row[1] == "Net")
    # A parameter that the last node shares with the first counts in both layers, so that all three are equal.
    assert [row[:5] for row in rows[start : start + 4]] == [
        ["model", "Net", "1", "6", "80"],
        ["  blocks", "Sequential", "1", "6", "80"],
        ["    {0..2}", "Block", "3", "2", "32"],
        ["      fc{0,1}", "Linear", "2", "1", "16"],
    ]


def test_the_costliest_nodes_come_first_and_equal_ones_together() -> None:
    top = api.inspect(scoped(3), top=1, by="macs").to_dict()["top"]
    assert (top["by"], top["kinds"], top["total"], top["unknown_nodes"]) == ("macs", 1, 192, 0)
    (row,) = top["rows"]
    assert (row["count"], row["each"], row["amount"]) == (6, 32, 192)
    assert row["modules"][:2] == ["blocks.0.fc0", "blocks.0.fc1"]
    assert ["blocks.{0..2}.fc{0,1}", "MatMul", "6", "2×4", "float", "32", "192", "100.0%"] in lines(
        api.inspect(scoped(3), by="macs").to_dict()
    )
    assert "top" not in api.inspect(scoped(3)).to_dict()


def test_amounts_by_which_nodes_are_ranked() -> None:
    totals = {
        by: api.inspect(model(("a", "b")), by=by).to_dict()["top"]["total"]
        for by in ("bytes", "macs", "flops", "weights")
    }
    # Each reads 32 bytes and a weight of 64, and writes 32.
    assert totals == {"bytes": 256, "macs": 64, "flops": 128, "weights": 128}
    with pytest.raises(UsageError, match="by"):
        api.inspect(model(("a", "b")), by="size")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="top"):
        api.inspect(model(("a", "b")), top=0)


def test_a_name_of_many_parts_is_a_tree_of_that_depth() -> None:
    found = api.inspect(model(("/" + "a/" * 3000 + "MatMul", "b")), tree=True).to_dict()
    assert len(found["tree"]) == 3001
    assert for_inspect(found)
