"""Nodes that verbs make stay in the modules of the nodes that they replace, and tables and pages name these."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from onnxtile import api
from onnxtile.model.modules import dotted, module_path
from onnxtile.report.layout import shown
from onnxtile.report.tables import for_fuse, for_match, for_tile
from tests.fitting.networks import inverted_residuals


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
    graph = helper.make_graph(nodes, "g", [x], [y], held)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)


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
