"""fit --fuse: the model is fused before it is cut, or its pieces are; the best result is written."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest

import onnxtile
from onnxtile.verbs.fit import FitOptions
from onnxtile.verbs.flows.fit import candidate, fused_subject, read_subject
from tests.fitting.networks import inverted_residuals, model
from tests.fitting.test_quantised import quantised


def gated() -> onnx.ModelProto:
    """Return convolutions whose results are multiplied by their sigmoids: fused, these are inside of one kernel."""
    return model(
        """
g (float[1,4,16,16] x) => (float[1,4,1,1] y) {
    [first] a = Conv<kernel_shape=[3,3], pads=[1,1,1,1]>(x, w)
    [gate] b = Sigmoid(a)
    [gated] c = Mul(a, b)
    [pool] y = GlobalAveragePool(c)
}""",
        w=(4, 4, 3, 3),
    )


@pytest.mark.parametrize("wrap", [False, True])
def test_the_result_is_planned_as_it_was_written_and_computes_the_same(wrap: bool, tmp_path: Path) -> None:
    fitted = onnxtile.fit(inverted_residuals(), capacity="9KiB", fuse=True, wrap=wrap)
    assert fitted.arena_verdict is not None and fitted.arena_verdict.equal
    fitted.save(tmp_path / "out.onnx")
    assert onnxtile.plan(tmp_path / "out.onnx").plan.arena_size == fitted.after.arena <= 9 * 1024
    assert onnxtile.verify(inverted_residuals(), tmp_path / "out.onnx").equal
    assert fitted.after.macs == onnxtile.inspect(tmp_path / "out.onnx").to_dict()["macs"]["total"]


def test_where_the_fused_model_fits_it_is_not_cut() -> None:
    plain = onnxtile.plan(gated()).plan.arena_size
    fused = onnxtile.plan(onnxtile.fuse(gated()).model).plan.arena_size
    assert fused < plain
    fitted = onnxtile.fit(gated(), capacity=fused, fuse=True)
    assert fitted.after.arena <= fused and fitted.after.nodes < fitted.before.nodes
    assert [step.kind for step in fitted.steps] == ["fuse"]
    assert fitted.steps[0].text.endswith("fused before the model is cut")
    assert fitted.after.macs == fitted.before.macs


def test_pieces_are_fused_where_the_fused_model_does_not_fit() -> None:
    fitted = onnxtile.fit(inverted_residuals(), capacity="9KiB", fuse=True)
    plain = onnxtile.fit(inverted_residuals(), capacity="9KiB")
    assert fitted.steps[-1].kind == "fuse" and "after" in fitted.steps[-1].text
    assert fitted.after.nodes < plain.after.nodes


@pytest.mark.parametrize("made", [inverted_residuals, quantised, gated])
def test_the_smallest_of_three_is_written(made: object) -> None:
    assert callable(made)
    options = FitOptions(made(), smallest=True, fuse=True, verify=False)
    subject = read_subject(options)
    arenas = [candidate(options, one).plan.arena_size for one in (subject, fused_subject(subject))]
    assert onnxtile.fit(made(), smallest=True, fuse=True).after.arena <= min(arenas)


def test_two_memories_are_not_fused() -> None:
    with pytest.raises(onnxtile.UsageError, match="fuse is for one memory"):
        onnxtile.fit(gated(), capacity={"sram": 4096, "dram": 65536}, fuse=True)
