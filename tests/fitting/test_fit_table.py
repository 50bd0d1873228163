"""The arena of fit is what plan says of the file that it wrote, to the byte, on real models and within their budgets."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path

import onnx
import pytest

import onnxtile
from onnxtile.fitting.search import FitTarget, search
from onnxtile.verbs.fit import FitOptions
from onnxtile.verbs.flows.fit import read_subject, unblocked_subject
from onnxtile.verbs.flows.fit_drafts import written
from tests.conftest import ROOT

LINES = [
    ("squeezenet", "2MiB", "0%"),
    *(
        pytest.param(*line, marks=pytest.mark.slow)
        for line in (
            ("resnet50", "3MiB", "0%"),
            ("resnet50", "2MiB", "0%"),
            ("squeezenet", "512KiB", "1%"),
            ("shufflenet", "640KiB", "0%"),
            ("shufflenet", "512KiB", "7%"),
            ("densenet121", "2MiB", "0%"),
            ("inception_v1", "1.25MiB", "0%"),
            ("mobilenet 1.0 224", "1MiB", "0%"),
            ("mobilenet 1.0 224", "512KiB", "2%"),
            ("mobilenet 1.0 224", "256KiB", "5%"),
            ("mobilenet 0.35 144", "96KiB", "3%"),
        )
    ),
]


ESTIMATES = [
    ("squeezenet", "512KiB", "1%"),
    *(
        pytest.param(*line, marks=pytest.mark.slow)
        for line in (
            ("resnet50", "2MiB", "0%"),
            ("shufflenet", "512KiB", "7%"),
            ("densenet121", "2MiB", "0%"),
            ("inception_v1", "1.25MiB", "0%"),
            ("mobilenet 0.35 144", "96KiB", "3%"),
        )
    ),
]


def _mobilenet(width: float, size: int) -> onnx.ModelProto:
    """Return MobileNetV2 with random weights and a batch of 1."""
    spec = importlib.util.spec_from_file_location("make_mobilenet_v2", ROOT / "models" / "make_mobilenet_v2.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    model: onnx.ModelProto = module.mobilenet_v2(size, width=width, seed=0)
    return model


@pytest.mark.filterwarnings("ignore:.*constants alone in the new model")
@pytest.mark.parametrize(("name", "capacity", "budget"), LINES)
def test_the_arena_is_what_plan_says_of_the_file(
    name: str, capacity: str, budget: str, light: Callable[[str], Path], tmp_path: Path
) -> None:
    kind, *sizes = name.split()
    made = _mobilenet(float(sizes[0]), int(sizes[1])) if sizes else light(kind)
    dims = {"batch": 1} if sizes else None
    fitted = onnxtile.fit(made, capacity=capacity, max_extra_macs=budget, dims=dims, verify=False)
    fitted.save(tmp_path / "out.onnx")
    assert onnxtile.plan(tmp_path / "out.onnx", verify=False).plan.arena_size == fitted.after.arena
    assert fitted.after.macs <= fitted.before.macs * (1 + float(budget.rstrip("%")) / 100)
    assert fitted.after.macs == onnxtile.inspect(tmp_path / "out.onnx").to_dict()["macs"]["total"]


@pytest.mark.parametrize(("name", "capacity", "budget"), ESTIMATES)
def test_the_peak_of_the_search_is_that_of_the_plan_within_a_hundredth(
    name: str, capacity: str, budget: str, light: Callable[[str], Path]
) -> None:
    kind, *sizes = name.split()
    made = _mobilenet(float(sizes[0]), int(sizes[1])) if sizes else light(kind)
    dims = {"batch": 1} if sizes else {}
    options = FitOptions(made, capacity=capacity, max_extra_macs=float(budget.rstrip("%")) / 100, dims=dims)
    subject = unblocked_subject(read_subject(options))
    assert options.memory is not None
    schedule = search(subject.regions, FitTarget(options.memory[1], float(options.max_extra_macs)))
    assert not schedule.is_whole and schedule.peak <= options.memory[1]
    peak = written(subject, schedule).peak
    assert abs(schedule.peak - peak) <= peak / 100
