"""fit with a fast and a slow memory: kernels work in the fast one, and the fewest bytes are copied."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import onnxtile
from onnxtile.system.errors import Infeasible
from tests.fitting.networks import inverted_residuals, model

MODEL = inverted_residuals()
SLOW = 1 << 20


def fitted(fast: int, **options: Any) -> onnxtile.FittedModel:
    return onnxtile.fit(MODEL, capacity={"sram": fast, "dram": SLOW}, **options)


def largest_operator() -> int:
    """Return the bytes of the operator that needs the most."""
    with pytest.raises(onnxtile.OnnxtileError) as error:
        onnxtile.plan(MODEL, movement="activations", capacity={"sram": 64, "dram": SLOW})
    return int(str(error.value).split(" needs ")[1].split(" bytes")[0].replace(",", ""))


def test_a_model_that_is_cut_has_its_kernels_in_the_fast_memory() -> None:
    """Not one of its operators is left that needs as many bytes as before."""
    fast = largest_operator() * 3 // 4
    result = fitted(fast, max_extra_macs="20%")
    plan = result.planned.plan
    assert plan.movement is not None
    assert result.steps
    assert result.fits and result.after.arena == plan.arenas[0].size <= fast
    assert result.verdict is not None and result.verdict.equal
    assert result.arena_verdict is not None and result.arena_verdict.equal
    assert plan.movement.lower_bound <= plan.movement.bytes
    assert result.to_dict()["movement"]["bytes"] == plan.movement.bytes


def test_a_model_that_needs_no_cut_copies_only_inputs_and_outputs() -> None:
    result = fitted(1 << 20)
    movement = result.planned.plan.movement
    assert movement is not None
    assert not result.steps
    assert movement.bytes == movement.forced == 4 * (3 * 33 * 20 + 8)


def test_the_written_model_is_what_was_planned(tmp_path: Path) -> None:
    fitted(largest_operator(), max_extra_macs="20%").save(tmp_path / "fitted.onnx")
    audit = onnxtile.check_plan(tmp_path / "fitted.onnx", tmp_path / "fitted.onnx")
    assert audit.sound, audit.failures


def test_an_operator_that_cannot_be_cut_is_named() -> None:
    whole = model("g (float[4,64] x) => (float[64,4] y) { h = Softmax<axis=0>(x) y = Transpose(h) }")
    with pytest.raises(Infeasible, match=r"\(Transpose\) needs 2,048 bytes for its operands and results"):
        onnxtile.fit(whole, capacity={"sram": 1024, "dram": SLOW})
