"""A program in C whose input comes row by row asks a function of the user's for each row once, in order."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from pathlib import Path

import onnx
import pytest

import onnxtile
from onnxtile import cli
from onnxtile.model.constants import Constants
from onnxtile.shapes.opened_calls import Unfolded, unfold
from onnxtile.shapes.resolve import resolve
from onnxtile.system.errors import Mismatch
from onnxtile.verbs.flows.results import PlannedModel
from tests.fitting.networks import model
from tests.fitting.test_inputs import image
from tests.fitting.test_quantised import quantised

pytest.importorskip("emx_onnx_cgen", reason="the extra c is not installed")

from onnxtile.firmware.build import build
from onnxtile.firmware.program import HelperCall
from onnxtile.firmware.prove import Tools, compiler, output_of, runs_of
from onnxtile.firmware.steps import program_of
from onnxtile.firmware.write import written
from onnxtile.model.feeds import ANYTHING

pytestmark = pytest.mark.skipif(compiler() is None, reason="there is no C compiler")


def two_images() -> onnx.ModelProto:
    """Return a model of two inputs that can come row by row."""
    return model(
        """
g (float[1,2,24,20] x, float[1,2,24,20] z) => (float[1,4,1,1] y) {
    [first] a = Conv<kernel_shape=[3,3], pads=[1,1,1,1]>(x, w0)
    [other] b = Conv<kernel_shape=[1,1]>(z, w1)
    [add] c = Add(a, b)
    [mean] y = GlobalAveragePool(c)
}""",
        w0=(4, 2, 3, 3),
        w1=(4, 2, 1, 1),
    )


CASES: dict[str, tuple[Callable[[], onnx.ModelProto], int]] = {
    "one channel": (partial(image, 1), 1500),
    "three channels": (partial(image, 3), 2048),
    "quantised": (quantised, 4000),
    "two inputs": (two_images, 4096),
}
"""Models and capacities in bytes."""


@cache
def planned_rows(name: str) -> tuple[PlannedModel, Unfolded]:
    """Return the plan of a model that was fitted with its inputs row by row, and the model with its calls open."""
    made, capacity = CASES[name]
    source = made()
    rows = [f"{value.name}=rows" for value in source.graph.input]
    fitted = onnxtile.fit(source, capacity=capacity, io=rows, verify=False, budget="0%")
    planned = onnxtile.plan(fitted.model, verify=False)
    return planned, unfold(planned.model, resolve(planned.model, run=True), Constants(planned.model))


@pytest.mark.parametrize("name", ["three channels", "quantised"])
def test_the_program_asks_for_each_row_once(name: str) -> None:
    planned, opened = planned_rows(name)
    made = build(opened, planned.plan)
    assert made.proof.equal
    assert made.proof.runs == 3
    calls = [call for call in program_of(opened, planned.plan).calls if isinstance(call, HelperCall)]
    (stream,) = planned.plan.streamed
    assert [call.numbers for call in calls] == list(stream.reads)
    assert len(calls) > 1
    # The caller hands over no memory of the whole input.
    assert not made.source.interface.inputs
    assert "void onnxtile_net_run(void)" in made.source.header
    assert "void onnxtile_net_rows_x(float *target, size_t first, size_t count);" in made.source.header


def test_two_inputs_have_functions_of_their_own() -> None:
    planned, opened = planned_rows("two inputs")
    made = build(opened, planned.plan)
    assert made.proof.equal
    assert {function for _, function in made.source.interface.streams} == {"onnxtile_net_rows_x", "onnxtile_net_rows_z"}


@pytest.mark.parametrize("fault", ["twice", "early"])
def test_rows_that_come_twice_or_out_of_order_end_the_proof(fault: str) -> None:
    planned, opened = planned_rows("one channel")
    program, command = program_of(opened, planned.plan), compiler()
    assert command is not None
    places = [number for number, call in enumerate(program.calls) if isinstance(call, HelperCall)]
    calls = list(program.calls)
    if fault == "twice":
        calls.insert(places[1], calls[places[1]])
    else:
        calls[places[0]], calls[places[1]] = calls[places[1]], calls[places[0]]
    source = written(replace(program, calls=tuple(calls)), "onnxtile_net")
    with pytest.raises(Mismatch, match="asks for rows of an input twice, or out of order"):
        output_of(source, list(runs_of(opened, planned.plan, ANYTHING, 1)), Tools(tuple(command)))


def test_the_commands_write_the_function_under_the_name_of_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ended(*words: str) -> None:
        monkeypatch.setattr(sys, "argv", ["onnxtile", *words, "-q"])
        with pytest.raises(SystemExit) as end:
            cli.main()
        assert end.value.code in {None, 0}

    onnx.save(image(3), tmp_path / "m.onnx")
    fitted = str(tmp_path / "f.onnx")
    fit = ["fit", str(tmp_path / "m.onnx"), "--capacity", "2KiB", "--io", "x=rows", "-o", fitted]
    ended(*fit, "--emit", str(tmp_path / "camera.c"))
    assert "void camera_rows_x(float *target, size_t first, size_t count);" in (tmp_path / "camera.h").read_text()
    ended("plan", fitted, "--dry-run", "--emit", str(tmp_path / "other.c"))
    assert "    other_rows_x((float *)x[0], (size_t)p[0], (size_t)p[1]);" in (tmp_path / "other.c").read_text()
