"""The judgement of single nodes: it passes what is right, and notices what is wrong."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import numpy_helper

from onnxtile.system.errors import ModelError
from onnxtile.tiling.limits import Limits

if TYPE_CHECKING:
    from tests.tiling.conftest import Bench, Tiled

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


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16])
@pytest.mark.parametrize("limit", [1, 7, 64])
def test_long_sums_are_no_less_exact_than_before(bench: Bench, dtype: type, limit: int) -> None:
    tiled = bench.tile(bench.case(m=5, k=1000, n=6, constants="b", dtype=dtype).model(), Limits(k=limit))
    (verdict,) = tiled.verdicts(runs=3)
    assert verdict.passed, verdict


def test_an_original_that_is_right_by_luck_is_no_yardstick(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """With one weight all over, each of its results is the same number: on one input it may hit the float64 product to the last bit."""
    weights = numpy_helper.from_array(np.full((4096, 256), 0.02, np.float32), "w")
    source = onnx.parser.parse_model(
        '<ir_version: 10, opset_import: ["": 17]> g (float[1,4096] x) => (float[1,256] y) { y = MatMul(x, w) }'
    )
    source.graph.initializer.append(weights)
    tiled = bench.tile(source, Limits(k=1))
    for drawn in map(np.random.default_rng, range(14, 19)):
        monkeypatch.setattr(np.random, "default_rng", lambda _seed, drawn=drawn: drawn)
        (verdict,) = tiled.verdicts()
        assert verdict.passed, verdict
