"""The arenas of real models: at the bound, with nothing left out, and no larger than they were."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from onnxtile import api
from onnxtile.model.load import Source
from onnxtile.planning.result import PlanResult

Find = Callable[[str], Path]

LIGHT = {
    "squeezenet": 3_928_576,
    "inception_v1": 4_646_400,
    "inception_v2": 4_014_080,
    "densenet121": 7_225_344,
    "resnet50": 7_225_344,
}
LARGE = {"vgg19": 25_690_112, "zfnet512": 9_124_608, "bvlc_alexnet": 2_239_488}
OCR = {"det": ((1, 3, 640, 640), 26_214_400), "rec": ((1, 3, 48, 320), 1_966_080)}


def planned(model: Source, **options: Any) -> PlanResult:
    return api.plan(model, verify=False, **options).plan


def figures(result: PlanResult) -> tuple[int, bool, tuple[object, ...]]:
    return result.arena_size, result.optimal, result.unplanned


@pytest.mark.parametrize(("name", "size"), LIGHT.items())
def test_light_models(name: str, size: int, light: Find) -> None:
    assert figures(planned(light(name))) == (size, True, ())


@pytest.mark.slow
@pytest.mark.parametrize(("name", "size"), LARGE.items())
def test_large_light_models(name: str, size: int, light: Find) -> None:
    assert figures(planned(light(name))) == (size, True, ())


def test_an_order_of_its_own_lowers_shufflenet(light: Find) -> None:
    assert figures(planned(light("shufflenet"), order="model")) == (3_110_912, True, ())
    assert figures(planned(light("shufflenet"))) == (2_885_120, True, ())


@pytest.mark.parametrize("part", OCR)
def test_a_reader_of_print(part: str, rapidocr: Find) -> None:
    shape, size = OCR[part]
    result = planned(rapidocr(f"ch_PP-OCRv4_{part}_infer"), shapes={"x": shape})
    assert figures(result) == (size, True, ())


def test_a_fused_resnet(light: Find) -> None:
    fused = api.fuse(light("resnet50"), verify=False).model
    assert figures(planned(fused)) == (5_218_304, True, ())


@pytest.mark.parametrize(("order", "slots"), [("model", 3), ("any", 4)])
def test_a_resnet_in_whole_buffers(order: str, slots: int, light: Find) -> None:
    """Caffe2's memonger published 3 in sequence, and 5 for every order."""
    result = planned(light("resnet50"), search="slots", order=order)
    owners = [b for b in result.buffers if b.alias is None and b.size]
    assert len({b.offset for b in owners}) == slots
