"""The buffers of a schedule in numbers: their peak is that of the model into which the schedule is written, and the arena is near."""

from __future__ import annotations

import onnx
import pytest

from onnxtile.fitting.search import FitTarget
from onnxtile.fitting.write import placing_problem
from onnxtile.planning.model_plan import quick_allocation
from onnxtile.verbs.fit import FitOptions
from onnxtile.verbs.flows.fit import read_subject
from onnxtile.verbs.flows.fit_drafts import WrittenSchedule
from tests.fitting.networks import inverted_residuals, model, search
from tests.fitting.test_quantised import quantised


def _rows() -> onnx.ModelProto:
    """Return a chain whose rows follow each other, so that strips of its result are joined without a copy, then split."""
    return model(
        """
g (float[1,1,64,24] x) => (float[1,1,64,8] y) {
    [wide] a = Conv<kernel_shape=[3,3], pads=[1,1,1,1]>(x, w0)
    [turned] b = MatMul(a, w1)
    [relu] c = Relu(b)
    [narrow] d = MatMul(c, w2)
    [again] e = Relu(d)
    [over] y = Add(d, e)
}""",
        w0=(1, 1, 3, 3),
        w1=(24, 96),
        w2=(96, 8),
    )


@pytest.mark.parametrize("io", ["outputs", "inside", "outside"])
@pytest.mark.parametrize(("made", "most"), [(inverted_residuals(), 1.0), (quantised(), 1.023), (_rows(), 1.0)])
def test_the_arena_in_numbers_is_near_that_of_the_written_model(made: onnx.ModelProto, most: float, io: str) -> None:
    """As many bytes live in numbers; up to `most` as many where the plan joins outputs outside of the arena in a quantised island."""
    subject = read_subject(FitOptions(made, capacity="smallest", io=io))
    whole = max(region.peak for region in subject.regions.whole)
    for share in (0.8, 0.5, 0.3):
        schedule = search(subject.regions, FitTarget(int(share * whole), 0.1))
        cut = WrittenSchedule(subject, schedule)
        expected = quick_allocation(cut.written.opened.unfolded, subject.settings)
        peak = expected.arenas[0].problem.peak[0]
        assert peak <= placing_problem(subject.regions, schedule).peak[0] <= (most if io == "outside" else 1.0) * peak
        assert abs(cut.arena - expected.size) <= 0.03 * expected.size


def test_nothing_is_written_before_a_schedule_fits() -> None:
    subject = read_subject(FitOptions(inverted_residuals(), capacity="10KiB"))
    cut = WrittenSchedule(subject, search(subject.regions, FitTarget(10 << 10, 0.1)))
    assert cut.peak <= cut.arena <= 10 << 10
    assert "written" not in vars(cut)
