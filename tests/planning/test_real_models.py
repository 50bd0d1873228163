"""Plans of real models: nothing left out, the bound reached, and the same bits inside the arena.

The peak is computed a second time from the file alone: the shapes are those of a run that hands out every tensor, the lives those of a walk
over the protobuf, the sum one of all steps.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

from onnxtile import api
from onnxtile.model.binding import bind
from onnxtile.model.constants import Constants
from onnxtile.model.load import Source, load
from onnxtile.planning.result import PlanResult
from onnxtile.shapes.resolve import resolve
from onnxtile.system.errors import Infeasible
from onnxtile.system.runtime import Array, Session
from tests.build import Find
from tests.planning.conftest import Case

VIEW_OPERATORS = {"Reshape", "Flatten", "Squeeze", "Unsqueeze", "Identity", "Dropout"}


@pytest.fixture(scope="module")
def cases(light: Find, zoo: Find, rapidocr: Find) -> Callable[[str], tuple[Path, Case]]:
    """Return a model by its name, with its input's shape bound, and its file."""
    found: dict[str, tuple[Path, Case]] = {}

    def find(name: str) -> tuple[Path, Case]:
        where = {"ch_PP": rapidocr, "dinov": zoo}.get(name[:5], light)
        path = where(name)
        if name not in found:
            model = load(path)
            bind(model, {}, {"x": (1, 3, 160, 160)} if where is rapidocr else {})
            found[name] = path, Case(model, resolve(model, run=True), Constants(model))
        return found[name]

    return find


@pytest.fixture(scope="module")
def views(cases: Callable[[str], tuple[Path, Case]]) -> Callable[[str], PlanResult]:
    """Return the plan of a model by its name in which only views share bytes."""
    return cache(lambda name: cases(name)[1].plan_views())


PEAKS = {
    "resnet50": 9_633_792,
    "inception_v1": 6_422_528,
    "dinov2div_ts14_sim0436": 30_464,
    "ch_PP-OCRv4_det_infer": 2_457_600,
}
every_model = pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow if name == "resnet50" else ()) for name in PEAKS]
)


@every_model
def test_nothing_is_unplanned_and_the_bound_is_reached(
    name: str, cases: Callable[[str], tuple[Path, Case]], views: Callable[[str], PlanResult]
) -> None:
    (path, case), result = cases(name), views(name)
    assert result.unplanned == ()
    spare = [e.reason for e in result.outside if e.reason != "a constant that no step reads"]
    assert spare == ["a graph input"]
    assert result.peak == result.lower_bound == PEAKS[name]
    assert result.arenas[0].size == PEAKS[name]
    assert result.optimal
    assert peak_of(path, {"x": (1, 3, 160, 160)}) == PEAKS[name]
    assert case.plan_views(planner="naive").arena_size > 3 * PEAKS[name]


@every_model
def test_the_run_inside_the_arena_gives_the_same_bits(
    name: str, cases: Callable[[str], tuple[Path, Case]], views: Callable[[str], PlanResult]
) -> None:
    _, case = cases(name)
    verdict = case.run(views(name), runs=2)
    assert verdict.equal, verdict
    assert verdict.runs == 2
    assert verdict.sessions < verdict.kernels


@every_model
def test_tensors_on_live_neighbours_are_noticed(
    name: str, cases: Callable[[str], tuple[Path, Case]], views: Callable[[str], PlanResult]
) -> None:
    (_, case), result = cases(name), views(name)
    reads = {value.name: {v.name for v in node.inputs if v} for node in case.model.graph for value in node.outputs}
    owners = [b for b in result.buffers if b.alias is None]
    # What a node makes of its own operand may be the same bits, as a Relu of positive numbers; so no operands.
    pairs = [
        (mover, victim)
        for mover in owners
        for victim in owners
        if victim.first < mover.first < victim.last
        and victim.name not in reads[mover.name]
        and 0 < mover.size <= result.arena_size - victim.offset
    ]
    for mover, victim in pairs[:: len(pairs) // 3]:
        wrong = tuple(
            replace(b, offset=victim.offset) if mover.name in {b.name, b.alias} else b for b in result.buffers
        )
        verdict = case.run(replace(result, buffers=wrong), runs=1)
        assert not verdict.equal, (mover, victim)


@every_model
def test_a_byte_less_than_the_peak_is_over_capacity(name: str, cases: Callable[[str], tuple[Path, Case]]) -> None:
    _, case = cases(name)
    assert case.plan_views(capacity=PEAKS[name]).arena_size == PEAKS[name]
    with pytest.raises(Infeasible, match=f"at least {PEAKS[name]:,} bytes, 1 more than"):
        case.plan_views(capacity=PEAKS[name] - 1)


def peak_of(path: Path, shapes: dict[str, tuple[int, ...]]) -> int:
    """Return the peak of a model whose nodes have no bodies, in bytes at an alignment of 64, graph inputs outside."""
    graph = onnx.load(path).graph
    sizes = sizes_of(path, shapes)
    fixed = {tensor.name for tensor in graph.initializer}
    owner: dict[str, str] = {}
    life: dict[str, list[int]] = {}
    for step, node in enumerate(graph.node):
        for name in node.input:
            if name in owner:
                life[owner[name]][1] = step
        if node.op_type == "Constant" or (node.input and all(name in fixed for name in node.input)):
            fixed.update(node.output)
            continue
        for place, name in enumerate(filter(None, node.output)):
            is_view = place == 0 and node.op_type in VIEW_OPERATORS
            owner[name] = owner.get(node.input[0], name) if is_view else name
            life.setdefault(owner[name], [step, step])[1] = step
    for output in graph.output:
        life[owner[output.name]][1] = len(graph.node) - 1
    return max(
        sum(-(-sizes[name] // 64) * 64 for name, (first, last) in life.items() if first <= step <= last)
        for step in range(len(graph.node))
    )


def sizes_of(path: Path, shapes: dict[str, tuple[int, ...]]) -> dict[str, int]:
    """Return the bytes of every tensor that a node makes, read off a run."""
    model = onnx.load(path)
    model.ir_version = max(model.ir_version, 4)
    known = {tensor.name for tensor in model.graph.initializer}
    feeds: dict[str, Array] = {}
    for value in model.graph.input:
        if value.name not in known:
            dims = tuple(dim.dim_value for dim in value.type.tensor_type.shape.dim)
            shape = dims if all(dims) else shapes[value.name]
            dtype = helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)
            feeds[value.name] = np.ones(shape, dtype)
    present = {value.name for value in model.graph.output}
    made = [name for node in model.graph.node for name in node.output if name]
    model.graph.output.extend(onnx.ValueInfoProto(name=name) for name in made if name not in present)
    found = Session(model.SerializeToString()).run(feeds, made)
    return {name: math.prod(array.shape) * array.itemsize for name, array in found.items()}


# The arenas of real models: at the bound, with nothing left out, and no larger than they were.


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
