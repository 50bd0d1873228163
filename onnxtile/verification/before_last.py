"""Comparison before the last Sigmoid or Softmax of an output that is the same number everywhere, whatever the model computes.

On noise many detection heads give 0 everywhere: a wrong model gives the same zeros. Then both models run once more without these
operators, and their operands are compared.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import onnx_ir as ir

from onnxtile.model.quantising import OWN_DOMAINS
from onnxtile.model.session import repeatable_session
from onnxtile.model.walk import RESHAPING
from onnxtile.verification.trials import Trial, Verdict
from onnxtile.verification.values import OutputError, is_inexact

_LAST = frozenset({"Sigmoid", "Softmax"})
_MOVING = RESHAPING | {"Concat", "Expand", "Pad", "Slice", "Split", "Transpose"}
"""Operators whose results have the elements of their first operand, or of all operands for Concat."""
_FLAT = 1e-3
"""The range of an output between 0 and 1 below which its elements tell nothing."""
_SATURATED = 1e-6
"""The distance from 0 and 1 within which a Sigmoid or Softmax has lost its operand."""

Compared = Callable[[ir.Model, ir.Model, list[Trial]], Verdict]
"""Returns the verdict of the second model on trials of the first."""


def compare_before(
    verdict: Verdict, trials: Sequence[Trial], original: ir.Model, other: ir.Model, compare: Compared
) -> Verdict:
    """Return `verdict` with the operands of the last Sigmoid or Softmax compared where an output on all `trials` tells nothing.

    The reason of such an output says what was compared. Both models must have these operators.
    """
    names = {name for name in _names(trials) if _tells_nothing([trial.results[name] for trial in trials])}
    copies = [_without_last(model, names) for model in (original, other)] if names else []
    both = {name for name in names if all(name in found for _, found in copies)}
    if not both:
        return verdict
    operators = copies[0][1]
    first, second = (_without_last(model, both)[0] for model in (original, other))
    runner = repeatable_session(first)
    before = [replace(trial, results=runner.run(trial.feeds)) for trial in trials]
    inner = {output.name: output for output in compare(first, second, before).outputs}
    outputs = tuple(
        _merged(output, inner[output.name], operators[output.name]) if output.name in both else output
        for output in verdict.outputs
    )
    return replace(verdict, outputs=outputs)


def _merged(output: OutputError, before: OutputError, operators: str) -> OutputError:
    """Return the error `before` the operators with the remark of where it was; the output's own where that is wrong already."""
    if not output.equal:
        return output
    said = f"compared before the last {operators}: the output is flat on these inputs"
    return replace(before, reason=f"{said}; {before.reason}" if before.reason else said)


def _names(trials: Sequence[Trial]) -> Iterator[str]:
    return iter(trials[0].results) if trials else iter(())


def _tells_nothing(results: Sequence[Any]) -> bool:
    """Return whether all elements are nearly one number, or all at 0 and 1."""
    if not all(isinstance(one, np.ndarray) and is_inexact(one) and one.size for one in results):
        return False
    flat = np.concatenate([one.astype(np.float64).ravel() for one in results])
    if not np.isfinite(flat).all() or flat.min() < -_SATURATED or flat.max() > 1 + _SATURATED:
        return False
    at_ends = np.minimum(np.abs(flat), np.abs(1 - flat)) <= _SATURATED
    return bool(flat.max() - flat.min() <= _FLAT or at_ends.all())


def _without_last(model: ir.Model, names: set[str]) -> tuple[ir.Model, Mapping[str, str]]:
    """Return a copy of `model` whose outputs `names` come from the operands of their last Sigmoids and Softmaxes.

    Beside it, for each output that has such operators, their types.
    """
    copy = model.clone()
    found: dict[str, str] = {}
    for output in [output for output in copy.graph.outputs if output.name in names]:
        last = _last(output)
        if last:
            found[output.name or ""] = " or ".join(sorted({node.op_type for node in last}))
        for node in last:
            _bypass(copy.graph, node)
    return copy, found


def _bypass(graph: ir.Graph, node: ir.Node) -> None:
    """Let the operand of `node` take the place and the name of its result (in place)."""
    identity, value = ir.node("Identity", [node.inputs[0]]), node.outputs[0]
    graph.insert_before(node, identity)
    made, name = identity.outputs[0], value.name
    made.type, made.shape = value.type, value.shape
    value.replace_all_uses_with(made, replace_graph_outputs=True)
    value.name, made.name = f"{name}/last", name


def _last(output: ir.Value) -> list[ir.Node]:
    """Return the Sigmoids and Softmaxes whose results are only moved on the way to `output`."""
    found: dict[ir.Node, None] = {}
    seen: set[ir.Node] = set()
    pending = [output]
    while pending:
        node = pending.pop().producer()
        if node is None or node in seen or node.domain not in OWN_DOMAINS:
            continue
        seen.add(node)
        if node.op_type in _LAST:
            found[node] = None
        elif node.op_type in _MOVING:
            pending += [value for value in node.inputs[: None if node.op_type == "Concat" else 1] if value is not None]
    return list(found)
