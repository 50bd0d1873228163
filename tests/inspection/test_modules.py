"""Sums over modules: each is the sum of what is inside, and the first that of the model."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from onnxtile import api
from onnxtile.inspection.layers import Module
from onnxtile.model.modules import dotted, module_path
from onnxtile.report.inspect_tables import for_inspect
from onnxtile.report.layout import shown
from onnxtile.report.tables import for_fuse, for_match, for_tile
from onnxtile.system.errors import UsageError
from tests import build
from tests.fitting.networks import inverted_residuals


def model(names: tuple[str, ...]) -> onnx.ModelProto:
    """Return products by 4×4 weights, one after another, the last by the weight of the first."""
    weights = [*(f"w{at}" for at in range(len(names) - 1)), "w0"]
    nodes = [
        helper.make_node("MatMul", [f"x{at}", weight], [f"x{at + 1}"], name=name)
        for at, (name, weight) in enumerate(zip(names, weights, strict=True))
    ]
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [2, 4]) for name in ("x0", f"x{len(names)}"))
    held = [numpy_helper.from_array(np.ones((4, 4), np.float32), weight) for weight in weights[:-1]]
    return build.model(nodes, [x], [y], held, ir_version=8)


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


# Nodes that verbs make stay in the modules of the nodes that they replace, and tables and pages name these.


def blocks(count: int, width: int = 8) -> onnx.ModelProto:
    """Return blocks of a product, a sum and a Relu, as PyTorch's exporter of `torch.export` graphs writes them."""
    nodes, held, value = [], [], "x"
    for block in range(count):
        for op, part, operand in (("MatMul", "fc", f"w{block}"), ("Add", "fc", f"b{block}"), ("Relu", "act", "")):
            result = f"{op}_{block}"
            node = helper.make_node(op, [value, operand] if operand else [value], [result], name=f"node_{result}")
            scopes = ["", "blocks", f"blocks.{block}", f"blocks.{block}.{part}", op]
            node.metadata_props.add(key="pkg.torch.onnx.name_scopes", value=repr(scopes))
            nodes.append(node)
            value = result
        held += [
            numpy_helper.from_array(np.full((width, width), 0.1, np.float32), f"w{block}"),
            numpy_helper.from_array(np.ones(width, np.float32), f"b{block}"),
        ]
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [2, width]) for name in ("x", value))
    return build.model(nodes, [x], [y], held)


def modules(model: onnx.ModelProto) -> dict[str, str]:
    notes = {node.name: {one.key: one.value for one in node.metadata_props} for node in model.graph.node}
    return {name: dotted(module_path(name, props)) for name, props in notes.items()}


def cells(parts: Sequence[object]) -> list[list[str]]:
    return [
        [str(cell) for cell in row]
        for one in parts
        for row in zip(*(column.cells for column in getattr(one, "columns", ())), strict=True)
    ]


def test_calls_of_meta_ops_are_in_the_module_of_their_nodes(tmp_path: Path) -> None:
    fused = api.fuse(blocks(3), ["Linear"], verify=False)
    fused.save(tmp_path / "f.onnx")
    found = modules(onnx.load(tmp_path / "f.onnx"))
    assert {module for name, module in found.items() if name.endswith("/Linear")} == {
        f"blocks.{i}.fc" for i in range(3)
    }
    assert fused.to_dict()["patterns"][0]["modules"] == [f"blocks.{i}.fc" for i in range(3)]
    assert ["Linear", "3", "3", "0", "blocks.{0..2}.fc"] in cells(for_fuse(fused.to_dict()))
    whole = api.fuse(blocks(1), ["Block=MatMul->Add->Relu"], verify=False)
    whole.save(tmp_path / "w.onnx")
    assert modules(onnx.load(tmp_path / "w.onnx")) == {"Relu_0/Block": "blocks.0"}, "the module around both"


def test_lowered_calls_stay_in_their_modules(tmp_path: Path) -> None:
    lowered = api.fuse(blocks(2), ["Linear"], lower="onnx", verify=False)
    lowered.save(tmp_path / "l.onnx")
    found = modules(onnx.load(tmp_path / "l.onnx"))
    assert {module for name, module in found.items() if "Linear" in name} == {"blocks.0.fc", "blocks.1.fc"}


@pytest.mark.parametrize("wrap", [False, True])
def test_tiles_are_in_the_module_of_their_node(tmp_path: Path, wrap: bool) -> None:
    tiled = api.tile(blocks(3), max=4, wrap=wrap, verify=False)
    tiled.save(tmp_path / "t.onnx")
    found = modules(onnx.load(tmp_path / "t.onnx"))
    assert {module for name, module in found.items() if "node_MatMul_1" in name} == {"blocks.1.fc"}
    assert cells(for_tile(tiled.to_dict()))[0] == ["blocks.{0..2}.fc", "3", "MatMul", "2", "8", "8", "1×2×2", "4"]


def test_a_node_without_modules_gives_none_to_its_tiles(tmp_path: Path) -> None:
    plain = blocks(1)
    for node in plain.graph.node:
        del node.metadata_props[:]
    tiled = api.tile(plain, max=4, verify=False)
    tiled.save(tmp_path / "t.onnx")
    assert {*modules(onnx.load(tmp_path / "t.onnx")).values()} == {""}


def test_pictures_colour_by_the_modules_of_the_metadata() -> None:
    document = api.plan(blocks(3), verify=False).document
    layers = [row["layer"] for row in shown(document)["buffers"] if row["node"] is not None]
    assert layers == [f"blocks.{block}" for block in range(3) for _ in range(3)]
    fused = api.plan(api.fuse(blocks(2), ["Linear"], verify=False).model, verify=False).document
    assert {row["layer"] for row in shown(fused)["buffers"]} == {"blocks.0", "blocks.1"}


def test_pieces_of_fit_are_in_the_module_of_their_node(tmp_path: Path) -> None:
    model = inverted_residuals()
    for node in model.graph.node:
        scopes = ["", "features", f"features.{node.name}", "op"]
        node.metadata_props.add(key="pkg.torch.onnx.name_scopes", value=repr(scopes))
    fitted = api.fit(model, capacity="12KiB", verify=False)
    fitted.save(tmp_path / "f.onnx")
    found = modules(onnx.load(tmp_path / "f.onnx"))
    makers = {value: node.name for node in model.graph.node for value in (node.name, *node.output)}
    pieces = {name: module for name, module in found.items() if "/region" in name}
    assert len(pieces) > 10 and len({*pieces.values()}) > 3
    for name, module in pieces.items():
        # What no node of the model made has no module: parts of the input, and the means that a rewrite adds.
        stem, _, rest = name.partition("/")
        assert module == (f"features.{makers[stem]}" if stem in makers and "mean" not in rest else ""), name
    assert found["project0/region0/piece0"] == "features.project0"


def test_matches_name_their_module_where_names_do_not() -> None:
    found = api.match(blocks(2), "MatMul->Add").to_dict()
    assert [match["module"] for match in found["matches"]] == ["blocks.0.fc", "blocks.1.fc"]
    assert cells(for_match(found))[1][:2] == ["node_MatMul_1", "blocks.1.fc"]
    plain = blocks(2)
    for node in plain.graph.node:
        del node.metadata_props[:]
        node.name = f"/{node.name}/{node.op_type}"
    assert cells(for_match(api.match(plain, "MatMul->Add").to_dict()))[0][:2] == [
        "/node_MatMul_0/MatMul",
        "/node_Add_0/Add",
    ]
