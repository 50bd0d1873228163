"""The outcome that a user sees: the arena before and after, warnings, nodes left out, and nodes that cannot meet a limit."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import onnx
import pytest
from onnx import parser

from onnxtile import api
from onnxtile.system.errors import Infeasible, ModelError, UsageError
from onnxtile.tiling.limits import Limits
from onnxtile.verbs.flows import tile as peaks
from onnxtile.verbs.flows.results import TiledModel

HEADER = '<ir_version: 10, opset_import: ["" : 17]>'


def chain(*sizes: int) -> onnx.ModelProto:
    """Return a model of products of a row of 8 × sizes, each with a weight that is an input: `mm0`, `mm1` ..."""
    weights = ", ".join(f"float[{a},{b}] w{i}" for i, (a, b) in enumerate(pairwise(sizes)))
    body = " ".join(f"v{i + 1} = MatMul(v{i}, w{i})" for i in range(len(sizes) - 1))
    last = len(sizes) - 1
    text = f"{HEADER} chain (float[8,{sizes[0]}] v0, {weights}) => (float[8,{sizes[-1]}] v{last}) {{ {body} }}"
    model = parser.parse_model(text)
    for index, node in enumerate(model.graph.node):
        node.name = f"mm{index}"
    return model


def outcome(model: onnx.ModelProto, limits: Limits, **options: Any) -> TiledModel:
    return api.tile(model, limits, **options)


def test_the_arena_before_and_after_is_that_of_plan(tmp_path: Path) -> None:
    model = chain(16, 48, 16)
    tiled = outcome(model, Limits.of(k=4))
    assert tiled.arena.before == sum(arena.size for arena in api.plan(model, verify=False).plan.arenas)
    api.save(tiled.model, tmp_path / "tiled.onnx")
    after = api.plan(tmp_path / "tiled.onnx", verify=False).plan
    assert tiled.arena.after == sum(arena.size for arena in after.arenas)
    assert tiled.to_dict()["arena"] == {"before": tiled.arena.before, "after": tiled.arena.after, "reason": None}


def test_an_arena_that_grew_is_a_warning() -> None:
    grown = outcome(chain(16, 48, 16), Limits.of(k=4), accumulate="sum")
    assert grown.arena.before is not None and grown.arena.after is not None
    assert grown.arena.after > grown.arena.before
    assert grown.warnings == (
        f"the arena grew from {grown.arena.before:,} to {grown.arena.after:,} bytes; "
        "accumulate = chain or gemm keeps fewer partial sums",
    )
    fewer = outcome(chain(16, 48, 16), Limits.of(k=4), accumulate="gemm").arena
    assert fewer.after is not None and fewer.after < grown.arena.after


def test_the_arena_is_absent_with_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    model = chain(8, 8)
    quick = api.tile(model, Limits.of(max=4), verify=False).arena
    assert (quick.before, quick.after, quick.reason) == (None, None, "planned only with verification")
    monkeypatch.setattr("onnxtile.verbs.flows.tile._MOST_NODES", 2)
    large = api.tile(model, Limits.of(max=4)).arena
    assert (large.before, large.after) == (None, None)
    assert (large.reason or "").startswith("planned only up to 2 nodes, and the model has ")


def test_the_arena_of_a_model_with_open_sizes_is_absent() -> None:
    weights = "{" + ", ".join(["0.5"] * 64) + "}"
    text = f"{HEADER} g (float[n,8] x) => (float[n,8] y) <float[8,8] w = {weights}> {{ y = MatMul(x, w) }}"
    arena = outcome(parser.parse_model(text), Limits.of(k=4)).arena
    assert (arena.before, arena.after) == (None, None)
    assert "the size of 'y' is not known" in (arena.reason or "")


def test_nothing_tiled_is_a_warning() -> None:
    assert outcome(chain(8, 8, 8), Limits.of(max=8)).warnings == (
        "nothing was tiled; the most common reason: within the limits",
    )
    relu = parser.parse_model(f"{HEADER} g (float[2] x) => (float[2] y) {{ y = Relu(x) }}")
    assert outcome(relu, Limits.of(max=8)).warnings == ("nothing was tiled; the model has no node that tile cuts",)


def test_nodes_are_left_out_by_name() -> None:
    tiled = outcome(chain(8, 8, 8, 8), Limits.of(max=4), skip=["mm1"])
    assert [site.node for site in tiled.result.tiled] == ["mm0", "mm2"]
    assert [(node.node, node.reason) for node in tiled.result.skipped] == [("mm1", "left out on request")]
    with pytest.raises(UsageError, match="unknown node to skip 'mm11'") as error:
        outcome(chain(8, 8, 8), Limits.of(max=4), skip=["mm11"])
    assert error.value.hint == "did you mean 'mm1'?"


def test_a_node_that_cannot_meet_the_limits_does_not_stop_the_others() -> None:
    # A tile holds three elements at least: 12 bytes of float, 24 of double.
    text = f"""{HEADER} g (float[8,8] x, double[8,8] z) => (float[8,8] y, double[8,8] u)
        {{ y = MatMul(x, x) u = MatMul(z, z) }}"""
    model = parser.parse_model(text)
    for node, name in zip(model.graph.node, ("small", "large"), strict=True):
        node.name = name
    tiled = outcome(model, Limits(memory=20))
    assert [site.node for site in tiled.result.tiled] == ["small"]
    (left,) = tiled.result.over_limits
    assert left.node == "large" and left.sizes == (8, 8, 8)
    assert left.reason == (
        "no tile of 'large' is within the limits: the smallest holds 24 bytes, and the memory is 20 "
        "(raise the memory to 24 bytes or more)"
    )
    assert tiled.warnings[0] == "1 node over the limits, left as in the model (strict makes this an error)"
    assert [entry["over_limits"] for entry in tiled.to_dict()["skipped"]] == [True]
    with pytest.raises(Infeasible, match="no tile of 'large'"):
        outcome(model, Limits(memory=20), strict=True)


DOUBLED = 12
"""Functions that each call the next twice: 2,048 calls of the last."""


@pytest.mark.parametrize("leaf", ["o = Relu(a)", "o = MatMul(a, a)"])
def test_no_arena_is_planned_where_nothing_is_tiled(leaf: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peaks.ArenaPlan, "_plan", None)
    head = '<ir_version: 10, opset_import: ["" : 17, "own" : 1]>'
    inner = [f"b = own.f{i + 1}(a) o = own.f{i + 1}(b)" for i in range(DOUBLED - 1)] + [leaf]
    functions = [
        f'<domain: "own", opset_import: ["" : 17, "own" : 1]> f{i} (a) => (o) {{ {body} }}'
        for i, body in enumerate(inner)
    ]
    main = f"{head} main (float[4, 4] x) => (float[4, 4] y) {{ y = own.f0(x) }}"
    tiled = outcome(parser.parse_model("\n".join([main, *functions])), Limits.of(max=8))
    assert not tiled.result.is_changed and tiled.verdict is not None and tiled.verdict.equal
    assert tiled.arena.to_dict() == {"before": None, "after": None, "reason": "not planned, since nothing was tiled"}


def test_tiles_of_more_dimensions_than_numpy_has_are_refused() -> None:
    many = ", ".join(["1"] * 64)
    text = f"""{HEADER} g (float[4, 8] x, float[8, 8] w) => (float[4, 8] y) <int64[66] s = {{{many}, 4, 8}}, int64[2] t = {{4, 8}}> {{
        a = Reshape(x, s) b = MatMul(a, w) y = Reshape(b, t) }}"""
    with pytest.raises(ModelError, match="the tensor 'a' has 66 dimensions"):
        outcome(parser.parse_model(text), Limits.of(max=4))
