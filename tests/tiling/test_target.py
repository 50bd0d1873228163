"""Limits files: what they say, what is refused, and that tiles keep to them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from onnxtile.system.errors import Infeasible, UsageError
from onnxtile.tiling.limits import Limits, TilingPolicy, WindowBounds, find, has_limits, ready_made
from tests.draws import draws
from tests.tiling.conftest import Bench, Tiled
from tests.tiling.test_convolutions import Conv
from tests.tiling.test_levels import written

STRICT = TilingPolicy(strict=True)


def test_every_field(tmp_path: Path) -> None:
    text = """
        doc = "a chip"
        m = 64
        k = { max = 128, multiple = 16 }
        n = { multiple = 8 }
        largest = { elements = 4096, bytes = "64 KiB" }
        memory = "1MiB"
        dtypes = ["float32", "int8"]
        [operator.MatMulInteger]
        k = 32
        pad = true
    """
    limits = find(written(tmp_path, text))
    common: dict[str, Any] = {
        "multiples": (1, 16, 8), "largest_elements": 4096, "largest_bytes": 65536, "memory": 2**20,
        "dtypes": frozenset({"float32", "int8"}),
    }  # fmt: skip
    own = Limits(64, 32, None, **{**common, "multiples": (1, 1, 8)}, pad=True)
    assert limits == Limits(64, 128, None, **common, operators=(("MatMulInteger", own),))
    assert limits.of_operator("MatMulInteger") == own and limits.of_operator("Gemm") is limits


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("m = 0", "field 'm.max'"),
        ("m = -3", "field 'm.max'"),
        ("m = 1.5", "field 'm': 1.5 is not a whole number: write 64, or { max = 64, multiple = 8 }"),
        ("m = true", "field 'm.max'"),
        ("m = 9999999999", "field 'm.max'"),
        ("k = { max = 100, multiple = 16 }", "field 'k': max = 100 is not a multiple of 16"),
        ("memory = [1]", "field 'memory': [1] should be a whole number"),
        ("outer = 3", "field 'outer': 3 should be a table"),
        ("max = 64", ":1: unknown key 'max' (it is a key of k, m, n)"),
        ("m = 4\nm = 8", ":2: this key has a value already"),
        ("k = { most = 3 }", "unknown key 'k.most'"),
        ("m = 4\n\nmm = 3", ":3: unknown key 'mm'"),
        ("memory = '12 parsecs'", "field 'memory': '12 parsecs' is not a size in bytes"),
        ("memory = '0'", "field 'memory'"),
        ("memory = '9999999999GiB'", "field 'memory'"),
        ("largest = { rows = 3 }", "unknown key 'largest.rows'"),
        ("dtypes = ['float33']", "field 'dtypes'"),
        ("dtypes = []", "field 'dtypes'"),
        ("m = 3\npad = 'yes'", "field 'pad'"),
        ("m = 3\n[operator.Conv3]\nm = 3", ":2: field 'operator.Conv3': tile cuts no such operator"),
        ("[operator.Gemm]\nm = 0", "field 'operator.Gemm.m.max'"),
        ("m == 3", "line 1"),
        ("doc = 'nothing'", "no limit is given"),
    ],
)
def test_what_makes_no_sense_is_refused_with_file_and_field(tmp_path: Path, text: str, where: str) -> None:
    path = written(tmp_path, text)
    with pytest.raises(UsageError) as error:
        find(path)
    assert str(error.value).startswith(f"{path}:") and where in str(error.value)
    assert str(error.value).removeprefix(f"{path}:").split(":")[0].isdigit(), "a line"


def test_a_file_that_is_missing_is_named_with_those_that_ship() -> None:
    with pytest.raises(UsageError, match=r"^chip\.toml: no such file \(ready-made: ") as error:
        find("chip.toml")
    ready = "128x128x128, 16x16x16, 64x64x64, 64x64x64-in-256KiB, cortex-m4, cortex-m55, cortex-m7, ethos-u55-128"
    assert error.value.hint == f"ready-made: {ready}, scratchpad-256KiB, x86-64-c"


def test_a_model_given_as_a_target_is_called_one(tmp_path: Path) -> None:
    (tmp_path / "small.onnx").write_bytes(b"\x08\x0a\xff")
    with pytest.raises(UsageError, match=r"small\.onnx: this is a model, not a TOML file$"):
        find(tmp_path / "small.onnx")


def test_what_the_command_line_says_counts_more() -> None:
    file = Limits(64, 64, None, multiples=(16, 1, 1), memory=1000, operators=(("Gemm", Limits(k=8)),))
    limits = Limits.of(m=32, memory=500, base=file)
    assert (limits.m, limits.k, limits.n, limits.memory) == (32, 64, None, 500)
    assert limits.of_operator("Gemm") == Limits(32, 8, None, memory=500)
    assert Limits.of(base=file) == file
    with pytest.raises(UsageError, match="the bound 40 of M is not a multiple of 16"):
        Limits.of(m=40, base=file)


@pytest.mark.parametrize("name", [name for name in ready_made() if has_limits(name)])
def test_every_ready_made_file(bench: Bench, name: str) -> None:
    limits = find(name)
    tiled = bench.judge(bench.case(m=70, k=200, n=300, constants="b", bias=(300,)), limits)
    assert all(verdict.passed for verdict in tiled.verdicts())
    require_exact(tiled, limits)


def require_exact(tiled: Tiled, limits: Limits) -> None:
    """Assert that every tile has exactly the size of the bounds, where tiles are filled up."""
    for site in tiled.result.tiled:
        for axis, bound in zip((site.grid.rows, site.grid.k, site.grid.n), limits.bounds, strict=True):
            assert not limits.pad or bound is None or set(axis.widths) == {bound}


SIZE = st.integers(1, 11)
BOUND = st.sampled_from([(None, 1), (4, 1), (4, 2), (None, 3), (5, 1)])


@draws(40, 160)
@given(
    sizes=st.tuples(SIZE, SIZE, SIZE),
    axes=st.tuples(BOUND, BOUND, BOUND),
    memory=st.sampled_from([None, None, 400, 1000]),
    pad=st.sampled_from([True, True, False]),
    constants=st.sampled_from(["", "b", "a", "abc"]),
    trans=st.booleans(),
    accumulate=st.sampled_from(["sum", "chain", "tree", "gemm"]),
    opset=st.sampled_from([7, 9, 10, 11, 13, 21]),
)
def test_filled_and_chosen_tiles(
    bench: Bench, sizes: Any, axes: Any, memory: int | None, pad: bool, constants: str, trans: bool, accumulate: str,
    opset: int,
) -> None:  # fmt: skip
    m, k, n = sizes
    multiples = (axes[0][1], axes[1][1], axes[2][1])
    limits = Limits(axes[0][0], axes[1][0], axes[2][0], multiples, memory=memory, pad=pad)
    if not limits.asks_for_choice and limits.bounds == (None, None, None) and not pad:
        return
    case = bench.case(m=m, k=k, n=n, constants=constants, trans_a=trans, trans_b=trans, bias=(n,), opset=opset)
    tiled = bench.judge(case, limits, TilingPolicy(accumulate=accumulate))
    assert all(verdict.passed for verdict in tiled.verdicts()), tiled.verdicts()
    require_exact(tiled, limits)
    for site in tiled.result.tiled:
        if site.chosen is not None:
            assert site.chosen.choice.held <= (memory or 0)
            assert len(site.emitted) <= site.chosen.choice.nodes


def test_the_loops_run_in_the_order_that_was_chosen(bench: Bench) -> None:
    case = bench.case(op="MatMul", m=64, k=8, n=16, constants="b")
    tiled = bench.judge(case, Limits(memory=1200))
    (site,) = tiled.result.tiled
    assert site.chosen is not None
    tiles = [node.name for node in tiled.nodes if "/tile_" in (node.name or "")]
    assert tiles == [f"fc/tile_m{m}_k{k}_n{n}" for _, m, k, n in site.grid.positions()]
    content = site.to_dict()["choice"]
    assert content["bytes_moved"] <= 1.05 * min(row["bytes_moved"] for row in content["trade"])
    assert content["ratio"] == content["bytes_moved"] / content["lower_bound"] >= 1


def test_a_choice_says_which_limit_keeps_each_axis_short(bench: Bench) -> None:
    case = bench.case(op="MatMul", m=64, k=64, n=64, constants="b")
    for limits in (Limits(8, None, None, memory=4096), Limits(None, None, 24, memory=9000), Limits(memory=1 << 15)):
        (site,) = bench.tile(case.model(), limits).result.tiled
        assert site.chosen is not None
        choice = site.to_dict()["choice"]
        for axis, (name, limit) in enumerate(choice["limited_by"].items()):
            step, bound = choice["tile"][axis], limits.bounds[axis]
            if step == 64:
                assert limit is None
                continue
            longer = [*choice["tile"]]
            longer[axis] = -(-64 // (-(-64 // step) - 1))
            m, k, n = longer
            is_bound, fits = bound is not None and longer[axis] > bound, 4 * (m * k + k * n + m * n) <= limits.memory
            assert limit == ("max" if is_bound else "choice" if fits else "memory"), (limits, name)


def test_a_choice_for_a_convolution_tells_the_bound_of_rows_from_that_of_rows_times_columns(bench: Bench) -> None:
    limits = Limits(16, memory=1 << 20, window=WindowBounds(rows=4))
    (site,) = bench.tile(Conv((18, 18), (3, 3), constants="wb").model(), limits).result.tiled
    choice = site.to_dict()["choice"]
    assert choice["tile"][1:3] == [4, 4]
    assert choice["limited_by"] == {"groups": None, "rows": "max", "columns": "m", "channels": None, "filters": None}


def test_fewer_nodes_move_more_bytes(bench: Bench) -> None:
    case = bench.case(op="MatMul", m=96, k=96, n=96, constants="b")
    limits = Limits(memory=8192)
    free = bench.judge(case, limits).result.tiled[0]
    assert free.chosen is not None
    fewest = free.chosen.trade[0].nodes
    assert fewest < free.chosen.choice.nodes
    bound = bench.judge(case, limits, TilingPolicy(nodes_at_most=fewest)).result.tiled[0]
    assert bound.chosen is not None and bound.chosen.choice.nodes == fewest >= len(bound.emitted)
    assert bound.chosen.choice.bytes_moved > free.chosen.choice.bytes_moved
    with pytest.raises(Infeasible, match=f"no tiling has {fewest - 1} nodes at most: the fewest are {fewest}"):
        bench.tile(case.model(), limits, TilingPolicy(nodes_at_most=fewest - 1))


def test_what_no_tile_can_meet_is_refused(bench: Bench) -> None:
    case = bench.case(op="MatMul", m=9, k=9, n=9)
    with pytest.raises(Infeasible, match="no tile of 'fc' is within the limits: the smallest holds 12 bytes"):
        bench.tile(case.model(), Limits(memory=11), STRICT)
    with pytest.raises(Infeasible, match="the smallest holds 3,072 bytes, and the memory is 3,000"):
        bench.tile(case.model(), Limits(16, 16, 16, memory=3000, pad=True), STRICT)
    with pytest.raises(Infeasible, match="the smallest has a block of 16 elements, more than the largest tensor"):
        bench.tile(case.model(), Limits(multiples=(4, 4, 4), largest_elements=15), STRICT)


@pytest.mark.parametrize(
    ("bias", "least"), [((3,), 16), ((1, 3), 16), ((3, 1), 16), ((), 12), ((1, 1), 12), ((3, 3), 12), (None, 12)]
)
def test_a_bias_takes_memory_beside_a_tile(bench: Bench, bias: tuple[int, ...] | None, least: int) -> None:
    # One of 3 × 3 elements is what the block of the result begins as.
    source = bench.case(m=3, k=3, n=3, bias=bias, constants="bc").model()
    with pytest.raises(Infeasible, match=f"holds {least} bytes, and the memory is {least - 1}") as error:
        bench.tile(source, Limits(memory=least - 1), STRICT)
    assert ("with its part of the bias" in str(error.value)) == (least == 16)
    assert error.value.hint == f"raise the memory to {least} bytes or more"
    assert bench.tile(source, Limits(memory=least)).result.tiled
    free = bench.case(m=3, k=3, n=3, bias=bias, beta=0.0).model()
    assert bench.tile(free, Limits(memory=12)).result.tiled, "a bias that is not read takes none"


def test_other_element_types_are_not_tiled(bench: Bench) -> None:
    limits = Limits(4, dtypes=frozenset({"float16"}))
    (skipped,) = bench.tile(bench.case(m=9).model(), limits).result.skipped
    assert skipped.reason == "the limits are for float16, and 'a' is float32"
    assert bench.tile(bench.case(m=9, dtype=np.float16).model(), limits).result.tiled


def test_options_that_make_no_sense() -> None:
    with pytest.raises(UsageError, match="0 nodes at most are no tiles"):
        TilingPolicy(nodes_at_most=0)
    with pytest.raises(UsageError, match="--runs 0"):
        TilingPolicy(runs=0)
    with pytest.raises(UsageError, match="the bound 0 of memory"):
        Limits.of(memory=0)


def test_the_figures_of_a_ready_made_target_need_no_pydantic() -> None:
    script = """
import sys
from onnxtile.system.registry import defer
defer("pydantic")
from onnxtile.tiling.limits import figures_of
assert figures_of("cortex-m7").calls_per_second
print("pydantic.main" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
