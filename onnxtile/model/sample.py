"""Shapes measured in runs on sample inputs: the last resort, for shapes that no inference finds and no data decide."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import onnx_ir as ir

from onnxtile.errors import NoKernel
from onnxtile.model.dependence import data_dependent
from onnxtile.model.feeds import Sizes
from onnxtile.model.known import Known
from onnxtile.model.submodel import exposing
from onnxtile.model.wanted import ANYTHING, Wanted

_SAMPLES = 2
"""Runs whose shapes must agree: a shape that differs between them depends on the data."""


@dataclass
class Samples:
    """Results of the runs: element type and shape of each value, or the reason why it has none. `refuted` values differed between runs."""

    known: dict[ir.Value, Known] = field(default_factory=dict)
    reasons: dict[ir.Value, str] = field(default_factory=dict)
    refuted: set[ir.Value] = field(default_factory=set)


def sampled(model: ir.Model, values: Iterable[ir.Value], sizes: Sizes, wanted: Wanted = ANYTHING) -> Samples:
    """Return the types and shapes that runs of `model` on inputs as `wanted` give to `values` of its main graph. `model` is not changed.

    Where onnxruntime has no kernel for one of its operators, nothing is known. Raises ModelError where it refuses the model.
    """
    found = Samples()
    dependent = data_dependent(model)
    open_ = []
    for value in values:
        if value in dependent:
            cause = dependent[value]
            found.reasons[value] = f"its shape depends on the data ({cause.op_type} {cause.name or ''}".rstrip() + ")"
        else:
            open_.append(value)
    if not open_:
        return found
    names = [value.name or "" for value in open_]
    try:
        session = exposing(model, names)
    except NoKernel as error:
        reason = f"no inference knows its shape, and {str(error).partition(':')[0]}"
        found.reasons.update(dict.fromkeys(open_, reason))
        return found
    runs = [session.run(feeds, names) for feeds in wanted.feeds(model, sizes, _SAMPLES)]
    for value in open_:
        _compare(value, [run[value.name or ""] for run in runs], found)
    return found


def _compare(value: ir.Value, seen: list[Any], found: Samples) -> None:
    if not all(hasattr(array, "shape") for array in seen):
        found.reasons[value] = "it is not a tensor"
        return
    shapes = {tuple(int(size) for size in array.shape): None for array in seen}
    if len(shapes) > 1:
        listed = " and ".join(str(list(shape)) for shape in shapes)
        found.reasons[value] = f"its shape depends on the data (runs gave {listed})"
        found.refuted.add(value)
        return
    dtype = seen[0].dtype
    element = ir.DataType.STRING if dtype.kind in "OSU" else ir.DataType.from_numpy(dtype)
    found.known[value] = Known(element, next(iter(shapes)))
