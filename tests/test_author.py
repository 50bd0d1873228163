"""Queries written for chosen nodes find these nodes again."""

import random
from collections.abc import Callable, Iterator
from pathlib import Path

import onnx_ir as ir
import pytest

from onnxtile import api
from onnxtile.fusion.pattern import from_file
from onnxtile.model.constants import Constants
from onnxtile.model.load import load
from onnxtile.query.match import Matcher, compiled
from onnxtile.system.errors import UsageError
from onnxtile.verbs.flows.match import find_nodes, pattern_file, write_query
from tests.conftest import ZOO


def in_block(model: ir.Model, prefix: str) -> list[str]:
    return [node.name or "" for node in model.graph if (node.name or "").startswith(prefix)]


@pytest.mark.parametrize(
    ("part", "sites"),
    [("block.1/norm1/", 5), ("block.1/mlp/gelu/", 2), ("block.1/attention/", 2), ("block.1/mlp/", 2)],
)
def test_a_written_query_finds_the_nodes_and_their_like(transformer: Path, part: str, sites: int) -> None:
    model = load(transformer)
    constants = Constants(model)
    nodes = find_nodes(model, in_block(model, part))
    assert len(nodes) > 3
    query = write_query(nodes, constants)
    matches = Matcher(model, constants).find(compiled(query))
    assert set(nodes) in [set(match.nodes) for match in matches]
    assert len({match.root for match in matches}) == sites


def test_a_draft_is_a_pattern_file_that_fuses(transformer: Path, tmp_path: Path) -> None:
    parts = ["scores", "scale", "softmax", "context"]
    draft = api.draft_pattern(transformer, [f"block.1/attention/{part}" for part in parts], "Att")
    assert draft.matches == 2
    file = tmp_path / "att.toml"
    file.write_text(draft.text)
    assert from_file(file).name == "Att"
    assert api.fuse(transformer, [str(file)]).fused == 2


def test_nodes_without_names_are_called_by_their_outputs() -> None:
    text = """<ir_version: 10, opset_import: ["" : 17]>
    g (float[2] x) => (float[2] y) { a = Sigmoid(x) y = Mul(x, a) }"""
    model = ir.from_onnx_text(text)
    for node in model.graph:
        node.name = None
    assert write_query(find_nodes(model, ["a", "y"]), Constants(model)) == "Sigmoid-*>Mul"


def test_what_cannot_be_written_is_said(transformer: Path) -> None:
    model = load(transformer)
    with pytest.raises(UsageError, match="no node 'nothing'"):
        find_nodes(model, ["nothing"])
    apart = find_nodes(model, ["block.0/attention/scores", "block.1/attention/scores"])
    with pytest.raises(UsageError, match="not connected"):
        write_query(apart, Constants(model))
    with pytest.raises(UsageError, match="cannot be the name"):
        pattern_file('a"b', "A->B")


QUICK = {"t5_encoder_dy20", "vit_ts14"}


def _is_of_one_site(node: ir.Node) -> bool:
    """Tell whether what `node` makes is read by few: a mask or a constant that all layers read belongs to none of them."""
    return sum(len(value.consumers()) for value in node.outputs) <= 3


def _around(node: ir.Node) -> Iterator[ir.Node]:
    makers = (value.producer() for value in node.inputs if value is not None)
    yield from (maker for maker in makers if maker is not None and _is_of_one_site(maker))
    yield from (reader for value in node.outputs for reader in value.consumers() if _is_of_one_site(reader))


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(n, marks=[] if n in QUICK else pytest.mark.slow)
        for n in sorted({p.stem for p in ZOO.glob("*.onnx")} | QUICK)
    ],
)
def test_queries_of_random_neighbourhoods_find_them(zoo: Callable[[str], Path], name: str) -> None:
    model = load(zoo(name))
    constants = Constants(model)
    matcher, choose = Matcher(model, constants), random.Random(name)
    nodes = [node for node in model.graph if _is_of_one_site(node)]
    known = {node.op_type for node in model.graph}
    for _ in range(20):
        chosen = [choose.choice(nodes)]
        for _ in range(choose.randint(1, 8)):
            near = [other for node in chosen for other in _around(node) if other not in chosen]
            chosen += [choose.choice(near)] if near else []
        query = write_query(chosen, constants)
        assert set(chosen) in [set(match.nodes) for match in matcher.find(compiled(query, known))], query


def test_of_two_alike_that_feed_a_node_the_chosen_one_is_found() -> None:
    text = """<ir_version: 10, opset_import: ["" : 17]>
    g (float[2] x) => (float[2] y) { a = Exp(x) b = Exp(a) c = Neg(b) d = Exp(c) y = Add(b, d) }"""
    model = ir.from_onnx_text(text)
    constants = Constants(model)
    nodes = find_nodes(model, ["d", "y"])
    assert write_query(nodes, constants) == "Exp-1>Add"
    assert [set(match.nodes) for match in Matcher(model, constants).find(compiled("Exp-1>Add"))] == [set(nodes)]
