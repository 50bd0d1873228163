"""The outcome that a user sees, and the judgement of single nodes."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import numpy_helper, parser

from onnxtile import api
from onnxtile.operators.node_view import ReasonCode
from onnxtile.system.errors import Infeasible, ModelError, UsageError
from onnxtile.tiling.limits import Limits
from onnxtile.verbs.flows import tile as peaks
from onnxtile.verbs.flows.results import TiledModel
from tests.tiling.conftest import Bench, Tiled

# The outcome that a user sees: the arena before and after, warnings, nodes left out, and nodes that cannot meet a
# limit.


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
    assert [(entry["over_limits"], entry["code"]) for entry in tiled.to_dict()["skipped"]] == [(True, "over_limits")]
    with pytest.raises(Infeasible, match="no tile of 'large'"):
        outcome(model, Limits(memory=20), strict=True)


DOUBLED = 10
"""Functions that each call the next twice: 512 calls of the last."""


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


# The judgement of single nodes: it passes what is right, and notices what is wrong.


FOUR = Limits.of(max=4)


def initializer(tiled: Tiled, ending: str) -> ir.Value:
    return next(v for name, v in tiled.model.graph.initializers.items() if name.endswith(ending))


def swap_blocks(tiled: Tiled) -> None:
    one, other = initializer(tiled, "b_k0_n0"), initializer(tiled, "b_k1_n0")
    one.const_value, other.const_value = other.const_value, one.const_value


def one_wrong_weight(tiled: Tiled) -> None:
    block = initializer(tiled, "b_k1_n1")
    assert block.const_value is not None
    array = block.const_value.numpy().copy()
    array[0, 0] += 1e-3 * abs(array[0, 0])
    block.const_value = ir.tensor(array)


def drop_a_partial_sum(tiled: Tiled) -> None:
    total = next(node for node in tiled.nodes if node.op_type == "Add" and "/sum" in (node.name or ""))
    total.replace_input_with(1, total.inputs[0])


def swap_columns(tiled: Tiled) -> None:
    concat = next(node for node in tiled.nodes if node.op_type == "Concat" and node.attributes["axis"].as_int() == 1)
    first, second = concat.inputs[:2]
    concat.replace_input_with(0, second)
    concat.replace_input_with(1, first)


def wrong_part_of_the_input(tiled: Tiled) -> None:
    node = next(node for node in tiled.nodes if node.name == "fc/tile_m0_k1_n0")
    other = next(node for node in tiled.nodes if node.name == "fc/tile_m0_k0_n0")
    node.replace_input_with(0, other.inputs[0])


@pytest.mark.parametrize(
    "sabotage", [swap_blocks, one_wrong_weight, drop_a_partial_sum, swap_columns, wrong_part_of_the_input]
)
def test_a_wrong_tiling_is_noticed(bench: Bench, sabotage: Callable[[Tiled], None]) -> None:
    tiled = bench.tile(bench.case(m=8, k=12, n=8, bias=(8,), constants="bc").model(), FOUR)
    assert tiled.verdicts()[0].passed
    sabotage(tiled)
    (verdict,) = tiled.verdicts()
    assert not verdict.passed and verdict.error > verdict.tolerance


def test_a_site_of_more_nodes_than_one_session_takes(bench: Bench) -> None:
    # 2 bands of 12 × 30 tiles: both bands read the blocks of B, which are made in the first.
    source = bench.case(op="MatMul", m=8, k=48, n=120).model()
    tiled = bench.tile(source, FOUR)
    assert len(tiled.nodes) > 700
    (verdict,) = tiled.verdicts(runs=2)
    assert verdict.passed, verdict
    tiles = [node for node in tiled.nodes if node.op_type == "MatMul"]
    tiles[-1].replace_input_with(1, tiles[1].inputs[1])
    assert not tiled.verdicts()[0].passed


def test_integers_are_judged_exactly(bench: Bench) -> None:
    tiled = bench.tile(bench.case(op="MatMul", m=8, k=12, n=8, constants="b", dtype=np.int32).model(), FOUR)
    assert tiled.verdicts()[0].passed
    block = initializer(tiled, "b_k1_n1")
    assert block.const_value is not None
    block.const_value = ir.tensor(block.const_value.numpy() + np.int32(1))
    assert not tiled.verdicts()[0].passed


def test_integers_wrap_around_alike(bench: Bench) -> None:
    case = bench.case(op="MatMul", m=8, k=12, n=8, dtype=np.int32)
    tiled = bench.tile(case.model(), FOUR)
    large = {name: array + np.int32(2**30) for name, array in case.feeds().items()}
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(tiled.run(large)["y"], large["a"] @ large["b"])


def test_a_constant_that_is_not_finite_gives_what_it_gave(bench: Bench) -> None:
    source = bench.case(m=8, k=12, n=8, constants="b").model()
    weight = np.ones((12, 8), np.float32)
    weight[3, 3], weight[5, 5] = np.inf, np.nan
    source.graph.initializer[0].raw_data = weight.tobytes()
    (verdict,) = bench.tile(source, FOUR).verdicts()
    assert verdict.passed


def test_a_type_without_kernels_is_said_to_be_so(bench: Bench) -> None:
    source = bench.case(op="MatMul", m=8, k=12, n=8).model()
    for info in (*source.graph.input, *source.graph.output):
        info.type.tensor_type.elem_type = int(ir.DataType.BFLOAT16)
    tiled = bench.tile(source, FOUR)
    assert tiled.result.matmuls == 12
    with pytest.raises(ModelError, match="onnxruntime's CPU has no kernel for MatMul") as error:
        tiled.verdicts()
    assert error.value.hint == "to tile without running, use --no-verify"


def test_what_a_verdict_says(bench: Bench) -> None:
    (verdict,) = bench.tile(bench.case(m=8, k=12, n=8).model(), FOUR).verdicts(runs=5)
    assert 0 < verdict.error <= verdict.tolerance < 1e-5
    assert json.loads(json.dumps(verdict.to_dict()))["node"] == "fc"


def test_of_many_runs_the_worst_counts(bench: Bench) -> None:
    tiled = bench.tile(bench.case(m=8, k=12, n=8, constants="b").model(), FOUR)
    (one,), (many,) = tiled.verdicts(), tiled.verdicts(runs=40)
    assert (one.runs, many.runs) == (1, 40)
    assert many.passed and many.error - many.tolerance > one.error - one.tolerance


@pytest.mark.parametrize(
    ("dtype", "limit"), [(np.float16, 1), (np.float16, 7), (np.float32, 7), (np.float32, 64), (np.float64, 64)]
)
def test_long_sums_are_no_less_exact_than_before(bench: Bench, dtype: type, limit: int) -> None:
    tiled = bench.tile(bench.case(m=5, k=500, n=6, constants="b", dtype=dtype).model(), Limits(k=limit))
    (verdict,) = tiled.verdicts(runs=3)
    assert verdict.passed, verdict


def test_an_original_that_is_right_by_luck_is_no_yardstick(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """With one weight all over, each of its results is the same number: on one input it may come near to the float64 product."""
    weights = numpy_helper.from_array(np.full((512, 16), 0.02, np.float32), "w")
    source = onnx.parser.parse_model(f"{HEADER} g (float[1,512] x) => (float[1,16] y) {{ y = MatMul(x, w) }}")
    source.graph.initializer.append(weights)
    tiled = bench.tile(source, Limits(k=1))
    for drawn in map(np.random.default_rng, (43, 76, 123)):
        monkeypatch.setattr(np.random, "default_rng", lambda _seed, drawn=drawn: drawn)
        (verdict,) = tiled.verdicts()
        assert verdict.passed and verdict.runs == 1 + 16, verdict


def test_the_page_of_tile_explains_every_code_of_a_reason() -> None:
    page = (Path(__file__).parent.parent.parent / "docs" / "tile.md").read_text()
    assert {code for code in ReasonCode if f"| `{code}` |" not in page} == set()
