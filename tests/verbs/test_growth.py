"""Work of the verbs grows linearly with the graph: counted in calls of functions, not in seconds."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import onnx
import pytest

from onnxtile import api
from tests.bench.large_graphs import MAKERS
from tests.counted import calls

SIZES = (60, 120, 240)
LINEAR = 2.0
"""How many times as much the second doubling of the graph adds as the first, where work is linear; 4 where it is quadratic."""
MOST = 1.4 * LINEAR
VERBS: dict[str, Callable[[onnx.ModelProto], Any]] = {
    "inspect": lambda model: api.inspect(model).to_dict(),
    "match": lambda model: api.match(model, "Tanh"),
    "fuse": partial(api.fuse, verify=False),
    "lower": partial(api.fuse, lower="ort", verify=False),
    "tile": partial(api.tile, max=4, verify=False),
    "plan": partial(api.plan, order="model", verify=False),
    "plan in any order": partial(api.plan, order="any", verify=False),
    "verify": lambda model: api.verify(model, model),
}
QUICK = {("plan", "wide"), ("inspect", "wide")}
PAIRS = [
    pytest.param(verb, shape, marks=() if (verb, shape) in QUICK else pytest.mark.slow, id=f"{verb}-{shape}")
    for verb in VERBS
    for shape in MAKERS
    if not (verb == "plan in any order" and shape in {"wide", "streams"})  # all pairs of buffers conflict there
]


@pytest.mark.parametrize(("verb", "shape"), PAIRS)
def test_twice_the_nodes_take_twice_the_calls(verb: str, shape: str) -> None:
    run = VERBS[verb]
    run(MAKERS[shape](SIZES[0]))  # what is imported and read once
    small, middle, large = (calls(partial(run, MAKERS[shape](size))) for size in SIZES)
    assert large - middle < MOST * (middle - small)


def test_the_calls_of_quadratic_work_are_too_many() -> None:
    def quadratic(size: int) -> list[int]:
        return [abs(a) for a in range(size) for _ in range(size)]

    small, middle, large = (calls(partial(quadratic, size)) for size in SIZES)
    assert large - middle > MOST * (middle - small)
