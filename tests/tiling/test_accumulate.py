"""The ways to add partial sums: each is right, and keeps as few of them alive as it says."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import onnx_ir as ir
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onnxtile.system.errors import UsageError
from onnxtile.tiling.limits import Accumulation, Limits, TilingPolicy
from onnxtile.tiling.write import most_nodes

if TYPE_CHECKING:
    from tests.tiling.conftest import Bench, Tiled

WAYS = list(Accumulation)
SIZE = st.tuples(st.integers(1, 17), st.integers(1, 5))


@settings(max_examples=60, deadline=None)
@given(
    sizes=st.tuples(SIZE, SIZE, SIZE),
    how=st.sampled_from(WAYS),
    op=st.sampled_from(["Gemm", "MatMul"]),
    constants=st.sampled_from(["", "b", "a", "abc"]),
    dtype=st.sampled_from([np.float32, np.float64, np.float16]),
    seed=st.integers(0, 100),
)
def test_every_way_is_as_exact_as_the_original(
    bench: Bench, sizes: Any, how: Accumulation, op: str, constants: str, dtype: Any, seed: int
) -> None:
    (m, max_m), (k, max_k), (n, max_n) = sizes
    case = bench.case(
        op=op, m=m, k=k, n=n, bias=(n,) if op == "Gemm" else None, constants=constants, dtype=dtype, seed=seed
    )
    tiled = bench.judge(case, Limits(max_m, max_k, max_n), TilingPolicy(how))
    assert all(verdict.passed for verdict in tiled.verdicts()), tiled.verdicts()
    for site in tiled.result.tiled:
        assert most_nodes(site.contraction, site.grid, how) == len(site.emitted)


def alive(tiled: Tiled) -> int:
    """Return how many partial sums there are at most before the next one is made."""
    nodes = [n for n in tiled.nodes if "/tile_" in (n.name or "") or "/sum" in (n.name or "")]
    partial: set[ir.Value] = set()
    most = 0
    for node in nodes:
        partial |= {node.outputs[0]}
        most = max(most, len(partial))
        partial -= {value for value in node.inputs if value is not None}
    return most


@pytest.mark.parametrize(("how", "most"), [("sum", 17), ("chain", 3), ("tree", 6), ("gemm", 2)])
def test_few_partial_sums_are_alive(bench: Bench, how: str, most: int) -> None:
    case = bench.case(op="MatMul", m=4, k=64, n=4, constants="b")
    tiled = bench.judge(case, Limits.of(max=4), TilingPolicy(accumulate=how))
    assert tiled.result.matmuls == 16
    assert alive(tiled) == most, "the last one made beside those that it is made of"


def test_gemm_adds_what_the_product_before_made(bench: Bench) -> None:
    tiled = bench.judge(
        bench.case(m=3, k=12, n=4, bias=(4,), constants="bc"), Limits.of(max=4), TilingPolicy(accumulate="gemm")
    )
    assert [node.op_type for node in tiled.nodes] == ["Slice", "MatMul", "Slice", "Gemm", "Slice", "Gemm", "Add"]
    first, second, third = (node for node in tiled.nodes if node.op_type in {"MatMul", "Gemm"})
    assert second.inputs[2] is first.outputs[0] and third.inputs[2] is second.outputs[0]


def test_a_tree_is_as_deep_as_it_must_be(bench: Bench) -> None:
    tiled = bench.judge(bench.case(op="MatMul", m=1, k=21, n=2), Limits(k=4), TilingPolicy(accumulate="tree"))
    names = [node.name.split("/")[1] for node in tiled.nodes if node.op_type == "Add" and node.name]
    assert names == [f"sum_level{level}_m0_n0_k{k}" for level, k in ((1, 1), (1, 3), (2, 3), (1, 5), (3, 5))]


@pytest.mark.parametrize(("k", "widths"), [(256, [256]), (257, [256, 2]), (512, [256, 257]), (600, [256, 256, 90])])
def test_very_many_are_summed_up_as_they_come(bench: Bench, k: int, widths: list[int]) -> None:
    """One Sum of thousands would round further off than the original does."""
    tiled = bench.judge(
        bench.case(op="MatMul", m=1, k=k, n=2, constants="b"), Limits(k=1), TilingPolicy(Accumulation.SUM)
    )
    assert [len(node.inputs) for node in tiled.nodes if node.op_type == "Sum"] == widths
    (site,) = tiled.result.tiled
    assert most_nodes(site.contraction, site.grid, Accumulation.SUM) == len(site.emitted)


def test_a_chain_of_very_many_is_one_of_chains(bench: Bench) -> None:
    tiled = bench.judge(bench.case(op="MatMul", m=1, k=600, n=2, constants="b"), Limits(k=1))
    assert tiled.count("Add") == 599 and alive(tiled) <= 4
    depth: dict[ir.Value | None, int] = {}
    for node in tiled.nodes:
        depth[node.outputs[0]] = max(depth.get(value, 0) for value in node.inputs) + (node.op_type == "Add")
    assert max(depth.values()) <= 256 + 2


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_integers_and_batches_are_added_in_a_chain(bench: Bench, dtype: Any) -> None:
    case = bench.case(op="MatMul", m=3, k=9, n=4, dtype=dtype)
    for how in ("sum", "gemm"):
        tiled = bench.judge(case, Limits.of(max=4), TilingPolicy(accumulate=how))
        assert (tiled.count("Add"), tiled.count("Sum"), tiled.count("Gemm")) == (2, 0, 0)


def test_a_way_that_does_not_exist_is_refused() -> None:
    with pytest.raises(UsageError, match=r"^invalid --accumulate 'pairs' \(choose sum, chain, tree, gemm\)$"):
        TilingPolicy(accumulate="pairs")
