"""Colours: by operator, by layer, and by kind, the same in plans that are compared."""

from __future__ import annotations

import re

from onnxtile.report.colors import CATEGORIES, OTHER, colorings, ramp
from onnxtile.report.layout import layer_names, shown
from tests.report.conftest import Plan, bare, row


def made(*operators: str) -> Plan:
    rows = [row(f"t{i}", 0, 100 - i, i, i, node=f"n{i}") for i in range(len(operators))]
    return dict(shown(bare(rows, schedule=[f"n{i}" for i in range(len(operators))], operators=list(operators))))


def test_operators_with_the_most_bytes_come_first_and_the_rest_together() -> None:
    plan = made(*(f"Op{i:02}" for i in range(20)))
    by_operator, _ = colorings([plan])
    labels = [group.label for group in by_operator.groups]
    assert labels[0] == "Op00" and labels[-1] == f"{20 - len(CATEGORIES) + 1} other operators"
    assert by_operator.color(plan["buffers"][19]) == OTHER
    assert len({group.color for group in by_operator.groups}) == len(labels)


def test_two_plans_have_the_same_colours() -> None:
    one, two = made("Conv", "Relu"), made("Relu")
    by_operator = colorings([one, two])[0]
    assert by_operator.color(one["buffers"][1]) == by_operator.color(two["buffers"][0])


def test_without_operators_and_layers_there_are_kinds() -> None:
    assert [way.name for way in colorings([shown(bare([row("a", 0, 8, 0, 1)]))])] == ["kind"]


def test_a_graph_input_is_a_group_of_its_own() -> None:
    plan = shown(
        bare([row("x", 0, 8, 0, 1, kind="input"), row("y", 8, 8, 0, 1, node="n")], schedule=["n"], operators=["Relu"])
    )
    assert [group.label for group in colorings([plan])[0].groups] == ["Relu", "graph input"]


def test_layers_are_read_from_names() -> None:
    names = {
        "/m/encoder/layers.0/blocks.1/attention/MatMul": "layers.0/blocks.1",
        "/m/encoder/layers.0/blocks.1/norm_1/Add": "layers.0/blocks.1",
        "/m/blocks/blocks.3/blocks.3.0/se/Mul": "blocks.3.0",
        "/m/layer1/layer1.0/conv1/Conv": "layer1.0",
        "/m/h/5/attn/Softmax": "5",
        "/m/embeddings/patch/Conv": "embeddings",
        "Softmax_12": "model",
    }
    assert layer_names(names) == names
    assert layer_names(["Conv_1", "Relu_2"]) == {}
    assert layer_names([]) == {}
    assert layer_names(["/m/a/Conv", "/m/a/Relu"]) == {}


def test_a_ramp_has_colours_of_its_own_for_each() -> None:
    assert len(set(ramp(48))) == 48
    assert all(re.fullmatch("#[0-9a-f]{6}", shade) for shade in ramp(48))
    assert len(ramp(1)) == 1 and ramp(0) == []


def test_meta_ops_of_one_name_are_one_group() -> None:
    by_operator = colorings([made("onnxtile::Linear", "onnxtile::Linear.2", "my::Linear.2")])[0]
    assert sorted(group.label for group in by_operator.groups) == ["Linear", "Linear.2"]
