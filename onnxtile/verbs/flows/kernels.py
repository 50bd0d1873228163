"""Chooses the kernels of a plan: each node, or each quantised island."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

import onnx_ir as ir

from onnxtile.fusion.quantised_operators import float_meaning
from onnxtile.model.quantising import is_quantised, quantises, quantises_at_run, sums_integers

_TRUTHS = frozenset(
    {"And", "Equal", "Greater", "GreaterOrEqual", "IsInf", "IsNaN", "Less", "LessOrEqual", "Not", "Or", "Xor"}
)
"""Operators with results of truth values."""


class KernelChoice(StrEnum):
    """The part of a model that a plan treats as one kernel."""

    ISLANDS = "islands"
    NODES = "nodes"


KERNELS = tuple(KernelChoice)
"""The values of the option `kernels` of `plan`."""


@dataclass(frozen=True)
class KernelCount:
    """How many islands became kernels, and how many float tensors are inside of them: these are never stored."""

    islands: int = 0
    float_tensors: int = 0

    def to_dict(self) -> dict[str, int]:
        """Return the JSON of the counts."""
        return dict(vars(self))


def choose_kernels(model: ir.Model, kernels: str) -> KernelCount | None:
    """Make each quantised island of `model` a meta-op where `kernels` is "islands" (in place), and count; None where no island is there."""
    if kernels == KernelChoice.NODES or not is_quantised(model):
        return None
    from onnxtile.fusion.library import select
    from onnxtile.fusion.rewrite import fuse

    before = _made(model)
    results = fuse(model, select(["quantised"]))
    found = sum(len(result.calls) for result in results)
    return KernelCount(found, len(before - _made(model))) if found else None


def _made(model: ir.Model) -> set[str]:
    """Return the names of the float tensors that nodes make at run time."""
    from onnxtile.model.constants import Constants

    constants = Constants(model)
    return {
        value.name or ""
        for graph in model.graphs()
        for node in graph
        for value in node.outputs
        if value not in constants and _is_float(node, value)
    }


def _is_float(node: ir.Node, value: ir.Value) -> bool:
    """Return whether `value`, made by `node`, has floats, as far as its type or the operator says."""
    if value.dtype is not None:
        return value.dtype.is_floating_point()
    if quantises(node) or sums_integers(node) or float_meaning(node) is not None or node.op_type in _TRUTHS:
        return False
    return not quantises_at_run(node) or value is node.outputs[1]
