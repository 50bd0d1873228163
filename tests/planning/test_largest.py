"""plan --largest: the largest size of one dimension with which weights, states and arena fit a capacity."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import onnxtile
from onnxtile import cli
from onnxtile.planning.ranges import Growth, SizeTrial, growth_of, largest_fitting
from onnxtile.system.errors import Infeasible, ModelError, OverLimit, UsageError
from onnxtile.verbs.flows.plan import RangedModel
from tests.conftest import ZOO
from tests.firmware.test_decoder import decoder
from tests.planning.test_states import ATTENTION, GROWING, MULTI_HEAD, model

WEIGHTED = """
net (float[rows, 16] x) => (float[rows, 8] y) {
  a = MatMul(x, wide)
  b = Relu(a)
  y = MatMul(b, narrow)
}
"""
TABLE = """
net (float[seq, 4] x) => (float[seq, 4] y) {
  size = Shape(x)
  seq = Gather <axis = 0> (size, zero)
  places = Range(zero, seq, one)
  place = Gather(table, places)
  y = Add(x, place)
}
"""
OPEN = """
net (float[rows, columns] x, float[rows, columns] z) => (float[rows, columns] y) {
  a = Relu(x)
  y = Add(a, z)
}
"""


def weighted() -> onnx.ModelProto:
    return model(WEIGHTED, wide=np.ones((16, 64), np.float32), narrow=np.ones((64, 8), np.float32))


def bounded() -> onnx.ModelProto:
    return model(TABLE, zero=np.int64(0), one=np.int64(1), table=np.ones((40, 4), np.float32))


# The search on plain numbers.


class Plans:
    """Plans that take `needs(size)` bytes, of which `growth` is an estimate; counts the plans."""

    def __init__(self, needs: Callable[[int], int], capacity: int, growth: Growth | None = None) -> None:
        self.needs, self.capacity, self.growth = needs, capacity, growth or needs
        self.sizes: list[int] = []

    def trial(self, size: int) -> SizeTrial:
        self.sizes.append(size)
        total = self.needs(size)
        return SizeTrial(size, total, total <= self.capacity, self.growth if total <= self.capacity else None)

    def largest(self, least: int = 1, most: int | None = None, first: int = 64) -> tuple[int | None, SizeTrial | None]:
        start = SizeTrial(first, self.needs(first), False, self.growth)
        return largest_fitting(self.trial, start, least, most, self.capacity)


NEEDS: dict[str, Callable[[int], int]] = {
    "a line": lambda n: 100 + 7 * n,
    "a square": lambda n: 13 * n * n + 5 * n,
    "steps": lambda n: 64 * ((n * 12 + 63) // 64),
    "the larger of two": lambda n: max(50_000, 3 * n * n),
}


@pytest.mark.parametrize("needs", NEEDS.values(), ids=NEEDS)
@pytest.mark.parametrize("capacity", [60_000, 999_999, 10**9])
def test_exact_estimates_need_two_plans(needs: Callable[[int], int], capacity: int) -> None:
    plans = Plans(needs, capacity)
    size, refused = plans.largest()
    assert size is not None and refused is not None
    assert needs(size) <= capacity < needs(size + 1) == refused.total
    assert plans.sizes == [size, size + 1]


@pytest.mark.parametrize(
    "wrong", [lambda n: 2 * n, lambda n: n * n, lambda n: 1000 * n, lambda n: n**0.5, lambda n: -n]
)
@pytest.mark.parametrize("needs", NEEDS.values(), ids=NEEDS)
def test_wrong_estimates_cost_plans_and_no_truth(needs: Callable[[int], int], wrong: Growth) -> None:
    plans = Plans(needs, 123_456, wrong)
    size, refused = plans.largest(least=1, most=100_000)
    assert size is not None and needs(size) <= 123_456 < needs(size + 1)
    assert refused is not None and refused.size == size + 1
    assert len(plans.sizes) <= 6 + 17  # a hundred thousand sizes are halved seventeen times


def test_no_size_fits() -> None:
    plans = Plans(lambda n: 500 + n, 500)
    assert plans.largest() == (None, SizeTrial(1, 501, False))
    assert plans.sizes == [1]


def test_all_sizes_of_the_range_fit() -> None:
    plans = Plans(lambda n: 10 * n, 10_000)
    assert plans.largest(most=70) == (70, None)
    assert plans.sizes == [70]


# Plans.


def bytes_at(source: onnx.ModelProto, dims: dict[str, Any], capacity: int | None = None, **options: Any) -> int:
    """Return the bytes of weights and arena of the plan of `source` with these sizes."""
    plan = onnxtile.plan(source, dims=dims, capacity=capacity, verify=False, **options).plan
    return int(plan.arena_size + plan.constant_bytes)


@pytest.mark.parametrize("capacity", [10_000, 65_536, 1_000_000])
def test_weights_count_and_the_next_size_has_no_plan(capacity: int) -> None:
    source = weighted()
    found = onnxtile.plan(source, capacity=capacity, largest="rows", verify=False)
    largest = found.largest
    assert largest is not None and largest.refused is not None
    weights = (16 * 64 + 64 * 8) * 4
    assert largest.needed.weights == weights
    assert largest.needed.state == 0
    assert largest.needed.total == weights + found.plan.arena_size <= capacity < largest.refused.total
    assert (largest.least, largest.refused.size) == (1, largest.size + 1)
    assert found.plan.ranges == {"rows": (1, largest.size)}
    assert bytes_at(source, {"rows": (1, largest.size)}, capacity - weights) == largest.needed.total
    with pytest.raises(Infeasible):
        bytes_at(source, {"rows": (1, largest.size + 1)}, capacity - weights)
    with pytest.raises(Infeasible):
        bytes_at(source, {"rows": largest.size + 1}, capacity - weights)


@pytest.mark.parametrize("text", [GROWING, ATTENTION, MULTI_HEAD], ids=["Concat", "Attention", "MultiHeadAttention"])
def test_a_kept_cache_counts_once_and_from_an_empty_one_on(text: str) -> None:
    source = model(text, heads=4)
    found = onnxtile.plan(source, capacity=2**16, largest="past", state="found", runs=3)
    largest = found.largest
    assert largest is not None and largest.refused is not None
    caches = len(found.plan.states)
    assert caches == len(source.graph.output) - 1
    assert largest.needed.state == caches * (largest.size + 1) * 4 * 16 * 4
    assert largest.needed.state + largest.needed.arena == found.plan.arena_size <= 2**16
    assert (largest.least, largest.refused.size) == (0, largest.size + 1)
    assert found.verdict is not None and found.verdict.equal
    with pytest.raises(Infeasible):
        bytes_at(source, {"past": (0, largest.size + 1)}, 2**16, state="found")


def test_a_cache_outside_the_arena_counts_as_state() -> None:
    source = model(GROWING, heads=4)
    apart = onnxtile.plan(source, capacity=2**16, largest="past", verify=False).largest
    kept = onnxtile.plan(source, capacity=2**16, largest="past", state="found", verify=False).largest
    assert apart is not None and kept is not None
    assert apart.needed.state == apart.size * 4 * 16 * 4
    assert apart.size < kept.size
    # The query lies outside the arena, and is no state.
    assert apart.apart == kept.apart == 4 * 16 * 4


def test_a_decoder_of_two_layers() -> None:
    found = onnxtile.plan(decoder(grows=True), capacity="256KiB", largest="past", state="found", runs=2)
    largest = found.largest
    assert largest is not None and largest.refused is not None
    assert largest.needed.state == sum(state.size for state in found.plan.states)
    assert len(found.plan.states) == 4
    assert largest.needed.total <= 2**18 < largest.refused.total


def test_a_range_bounds_the_search_and_may_end_it() -> None:
    found = onnxtile.plan(bounded(), capacity="1MiB", largest="seq", dims={"seq": (2, 40)})
    largest = found.largest
    assert largest is not None
    assert (largest.least, largest.size, largest.refused) == (2, 40, None)
    assert found.verdict is not None


def test_a_size_at_which_the_model_fails_is_named() -> None:
    with pytest.raises(ModelError, match=r"seq=\d+ fits the capacity, and the model fails there") as caught:
        onnxtile.plan(bounded(), capacity="4KiB", largest="seq")
    assert caught.value.hint == "give the sizes that it can run: dims={'seq': ...}" or "seq" in (
        caught.value.hint or ""
    )


def test_a_run_that_takes_too_much_memory_leaves_the_size_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def proved(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr(RangedModel, "proved", proved)
    with pytest.raises(OverLimit, match=r"rows=\d+ fits the capacity, and a run there takes more memory"):
        onnxtile.plan(weighted(), capacity=65_536, largest="rows")


def test_a_sum_of_the_dimension_follows_it() -> None:
    text = GROWING.replace("float[1, HEADS, 1, 16] x)", "float[1, HEADS, 1, 16] x, float[1, 1, 1, all] mask)")
    source = model(text.replace("w = Softmax(scores)", "m = Add(scores, mask)\n  w = Softmax(m)"), heads=2)
    options: dict[str, Any] = {"dims": {"all": "past + 1"}, "state": "found", "verify": False}
    found = onnxtile.plan(source, capacity=20_000, largest="past", **options)
    assert found.largest is not None
    assert found.plan.dims == {"past": found.largest.size, "all": found.largest.size + 1}


def test_a_dimension_without_a_name_has_that_of_its_shape() -> None:
    source = weighted()
    source.graph.input[0].type.tensor_type.shape.dim[0].ClearField("dim_param")
    found = onnxtile.plan(source, capacity=65_536, largest="x_0", shapes={"x": "(1:9)x16"}, verify=False)
    assert found.largest is not None
    assert (found.largest.size, found.largest.refused) == (9, None)


def test_growth_is_the_peak_of_the_plan_at_its_own_size() -> None:
    plan = onnxtile.plan(weighted(), dims={"rows": (1, 64)}, verify=False, io="inside").plan
    growth = growth_of(plan, "rows")
    assert growth(64) == plan.peak
    assert growth(128) == 2 * growth(64)


@pytest.mark.slow
@pytest.mark.skipif(not ZOO.exists(), reason="the models of torch's exporters are not here")
def test_an_exported_model_reads_as_many_tokens_as_fit() -> None:
    source, weights = ZOO / "bert_dy20dyn.onnx", 1_655_917
    options: dict[str, Any] = {"dims": {"batch": 1}, "verify": False, "order": "model", "search": "greedy-by-size"}
    largest = onnxtile.plan(source, capacity=1_782_000, largest="seq", **options).largest
    assert largest is not None and largest.refused is not None
    assert largest.needed.weights == weights
    assert largest.needed.total <= 1_782_000 < largest.refused.total
    # At one size, too, the plan of the next one takes more than weights leave.
    with pytest.raises(Infeasible):
        dims = {"batch": 1, "seq": largest.size + 1}
        onnxtile.plan(source, capacity=1_782_000 - weights, **{**options, "dims": dims})


# What is refused.


Command = Callable[..., tuple[int, str, str]]


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """Return what runs `onnxtile plan`: the exit code, stdout and stderr."""

    def run(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["onnxtile", "plan", *map(str, arguments)])
        code = 0
        try:
            cli.main()
        except SystemExit as end:
            code = int(end.code or 0)
        shown = capsys.readouterr()
        return code, shown.out, shown.err

    return run


@pytest.mark.parametrize(
    ("options", "code", "reason"),
    [
        ("--capacity 6KiB --largest rows", 1, "DOES NOT FIT: at rows=1 the plan takes at least"),
        ("--capacity 1MiB --largest row", 2, "the model has no dimension 'row'"),
        ("--largest rows", 2, "--largest needs the bytes of one memory"),
        ("--capacity a=1KiB --capacity b=1MiB --largest rows", 2, "--largest needs the bytes of one memory"),
        ("--capacity 1MiB --largest rows --dim rows=4", 2, "the dimension 'rows' has a size already"),
        ("--capacity a=1MiB --capacity b=1MiB --movement activations --largest rows", 2, "--largest is for one memory"),
        ("--largest rows --check plan.json", 2, "--largest is for planning"),
    ],
)
def test_one_line_says_what_is_wrong(options: str, code: int, reason: str, tmp_path: Path, command: Command) -> None:
    onnx.save(weighted(), tmp_path / "net.onnx")
    ended, out, error = command(tmp_path / "net.onnx", "--dry-run", *options.split())
    assert (ended, out, error.count("\n")) == (code, "", 1)
    assert error.startswith(f"error: {reason}")


def test_the_hint_adds_weights_that_lie_in_another_memory() -> None:
    with pytest.raises(Infeasible) as failed:
        onnxtile.plan(weighted(), capacity="6KiB", largest="rows")
    least, with_weights = map(int, re.findall(r"\d+", failed.value.hint or ""))
    smallest = onnxtile.plan(weighted(), capacity=least, largest="rows", verify=False)
    found = onnxtile.plan(weighted(), capacity=with_weights, largest="rows", verify=False)
    assert smallest.largest is not None and smallest.largest.size == 1
    assert found.largest is not None and found.largest.needed.weights == with_weights - 6 * 1024
    assert found.plan.arena_size <= 6 * 1024


def test_other_open_sizes_are_named(tmp_path: Path, command: Command) -> None:
    onnx.save(model(OPEN), tmp_path / "net.onnx")
    code, out, error = command(tmp_path / "net.onnx", "--capacity", "1MiB", "--largest", "rows")
    assert (code, out, error.count("\n")) == (2, "", 1)
    assert "columns" in error


def test_a_size_that_bounds_nothing_is_refused() -> None:
    source = model("net (float[rows, 4] x, float[4] z) => (float[4] y) {\n  y = Relu(z)\n}")
    with pytest.raises(UsageError, match="the size 'rows' bounds nothing"):
        onnxtile.plan(source, capacity="1MiB", largest="rows")


def test_the_report_and_the_json_say_where_it_stands(tmp_path: Path, command: Command) -> None:
    onnx.save(model(GROWING, heads=4), tmp_path / "net.onnx")
    options = ["--capacity", "64KiB", "--largest", "past", "--state", "found", "--no-verify", "--dry-run"]
    code, out, _ = command(tmp_path / "net.onnx", *options)
    assert code == 0
    assert "weights 0 + state 31,744 + arena 33,728 = 65,472 of 65,536" in out
    code, out, _ = command(tmp_path / "net.onnx", *options, "--json", "-")
    found = json.loads(out)["largest"]
    assert code == 0
    assert found["needed"] == {"weights": 0, "state": 31_744, "arena": 33_728, "total": 65_472}
    assert found["refused"] == {"size": 124, "total": 66_048}
    assert (found["dimension"], found["least"], found["size"], found["capacity"]) == ("past", 0, 123, 65_536)
