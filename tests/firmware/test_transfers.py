"""Copies between two memories are calls of a driver, which may make each as early, and as late, as the plan says."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import onnxtile
from onnxtile.declare.plan_document import MemoryCopy
from onnxtile.firmware.build import build
from onnxtile.firmware.program import Transfer, transfers_of
from onnxtile.firmware.prove import compiler
from onnxtile.model.feeds import Wanted
from onnxtile.system.errors import Mismatch
from onnxtile.verbs.flows.results import PlannedModel
from tests.conftest import ROOT
from tests.firmware.test_program import needs_cc, network, opened_of

pytest.importorskip("emx_onnx_cgen", reason="the extra c is not installed")


def moved(movement: str = "weights", fast: int = 6200, size: int = 12) -> PlannedModel:
    return onnxtile.plan(network(size), movement=movement, capacity={"sram": fast, "dram": 1 << 20}, verify=False)


def copy(step: int, before: int | None, free: int = 0, ready: int = 0, until: int | None = None) -> MemoryCopy:
    return MemoryCopy("", "", "", "", 0, "", "", 0, 4, step, before, free, ready, until)


def test_a_copy_starts_when_target_and_source_are_ready_and_ends_before_its_first_use() -> None:
    copies = [copy(0, 3), copy(4, 6, free=4), copy(7, None, ready=7, until=8)]
    assert list(transfers_of(copies, 10, ())) == [Transfer(0, 0, 0, 3), Transfer(1, 4, 4, 6), Transfer(2, 7, 7, 9)]


def test_copies_stay_in_their_order() -> None:
    late, early = copy(1, 9, free=3), copy(2, 4)
    assert list(transfers_of([late, early], 10, ())) == [Transfer(0, 1, 3, 4), Transfer(1, 2, 3, 4)]


def test_copies_by_kernels_part_those_before_from_those_after() -> None:
    copies = [copy(0, None), copy(5, 6), copy(7, None)]
    assert list(transfers_of(copies, 10, {5})) == [Transfer(0, 0, 0, 5), Transfer(2, 7, 5, 10)]


@needs_cc
@pytest.mark.parametrize(("movement", "fast"), [("weights", 6200), ("activations", 5400)])
def test_a_program_is_proved_with_copies_at_their_earliest_and_at_their_latest(movement: str, fast: int) -> None:
    planned = moved(movement, fast)
    made = build(opened_of(planned), planned.plan)
    assert planned.plan.movement is not None and made.proof.equal and made.proof.runs == 3
    assert made.source.transfers == len(planned.plan.movement.copies) > 1
    header = made.source.named("net").header
    assert "void net_copy(uint32_t id, void *target, const void *source, size_t size);" in header
    assert "void net_wait(uint32_t id);" in header


@needs_cc
def test_one_run_on_given_inputs_is_made_with_early_and_with_late_copies() -> None:
    planned = moved()
    wanted = Wanted({"pixels": np.ones((1, 3, 12, 12), np.float32)})
    assert build(opened_of(planned), planned.plan, wanted=wanted).proof.runs == 3


@pytest.mark.slow
@needs_cc
def test_tensors_that_leave_the_fast_memory_come_back() -> None:
    planned = onnxtile.plan(
        ROOT / "models" / "transformer.onnx",
        movement="activations",
        capacity={"sram": 112 * 1024, "dram": 1 << 20},
        verify=False,
    )
    assert planned.plan.movement is not None
    assert any(one.source_memory == "dram" for one in planned.plan.movement.copies)
    assert build(opened_of(planned), planned.plan).proof.equal


@needs_cc
@pytest.mark.parametrize("change", ["late", "early"])
def test_a_copy_outside_its_window_is_noticed(change: str) -> None:
    planned = moved()
    movement = planned.plan.movement
    assert movement is not None
    copies = [
        replace(one, before=len(planned.plan.schedule)) if change == "late" else replace(one, target_free=0)
        for one in movement.copies
    ]
    plan = replace(planned.plan, movement=replace(movement, copies=tuple(copies)))
    with pytest.raises(Mismatch, match="does not compute what the model does"):
        build(opened_of(planned), plan)


@needs_cc
def test_both_functions_are_weak(tmp_path: Path) -> None:
    moved().write(tmp_path / "net.c")
    (tmp_path / "own.c").write_text(
        '#include "net.h"\n'
        "void net_copy(uint32_t id, void *target, const void *source, size_t size) {\n"
        "    (void)id; (void)target; (void)source; (void)size;\n}\n"
        "void net_wait(uint32_t id) { (void)id; }\n"
        "int main(void) { static float pixels[432]; net_run(pixels); return 0; }\n"
    )
    found = compiler()
    assert found is not None
    command = [*found, "-std=c99", "-Wall", "-Wextra", "-Werror", "net.c", "own.c", "-lm", "-o", "net"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert not done.stderr and not done.returncode
