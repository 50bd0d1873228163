"""Judges a rewritten model by the effect that rounding has on the original model.

A sum in another order, or another formula for the same function, rounds otherwise, and some models make much of that: near 0 a sigmoid in
float32 knows steps of 6e-8 only, however small its result. So where an output is further off than the usual tolerance, it is held
against what the original makes of inputs that are changed by one unit in the last place; each rewritten site is judged alone besides.
In a quantised model, where rounding crosses from one step of quantisation to the next, some elements of every quantised tensor are
changed by one step as well. An output that a quantisation makes may be one step off.

A model that computes in floats of 16 bits rounds each result, whatever element type its outputs have. Where both models, run in
float32, agree, the outputs may be off as far as floats of 16 bits may.

No effect is measured through numbers that differ from run to run: each run draws the same ones. An output that depends on a random
operator without a seed, or on one that chooses by the size of its operands, has the usual tolerance.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir

from onnxtile.model.constants import Constants
from onnxtile.model.node_kinds import OWN_DOMAINS, dequantises, quantises
from onnxtile.model.session import ModelRunner, repeatable_session, session_of
from onnxtile.model.topology import all_graphs, all_nodes, all_values, cloned
from onnxtile.operators.node_view import given_input
from onnxtile.operators.table import Movement, movement_of, quantised_form
from onnxtile.shapes.resolve import Shapes, resolve
from onnxtile.system.errors import ModelError
from onnxtile.system.long_work import Progress, silent
from onnxtile.system.runtime import Array
from onnxtile.verification.draws import drawn_outputs, same_draws, unsteady_outputs
from onnxtile.verification.trials import OutputComparison, Trial, Verdict, compare_with, run_original
from onnxtile.verification.values import OutputError, compare_quantised, compare_values, is_inexact, precision_of

# A model of narrow floats in float: what onnxruntime has kernels for, to say what the narrow one should compute.

HALVES = frozenset({ir.DataType.FLOAT16, ir.DataType.BFLOAT16})
_NARROW = ir.DataType.BFLOAT16
_WIDE = ir.DataType.FLOAT
_TYPED = {"Cast": "to", "ConstantOfShape": "value", "Constant": "value"}


def is_narrow(model: ir.Model) -> bool:
    """Tell whether a value of `model` is of bfloat16, as far as the file says."""
    return any(value.dtype == _NARROW for value in all_values(model)) or any(
        value.const_value is not None and value.const_value.dtype == _NARROW
        for value in model.graph.initializers.values()
    )


def halves(model: ir.Model) -> set[ir.DataType]:
    """Return which floats of 16 bits `model` has, as far as the file says."""
    dtypes = {value.dtype for value in all_values(model)}
    dtypes |= {value.const_value.dtype for value in all_values(model) if value.const_value is not None}
    dtypes |= {dtype for node in all_nodes(model) for dtype in _named(node)}
    return {dtype for dtype in dtypes if dtype in HALVES}


def widened(model: ir.Model, narrow: Collection[ir.DataType] = (_NARROW,)) -> ir.Model:
    """Return a copy of `model` in which everything `narrow` is a float: inputs, constants, and what is cast to it."""
    copy = cloned(model)
    for value in all_values(copy):
        if value.dtype in narrow:
            value.type = ir.TensorType(_WIDE)
        if value.const_value is not None and value.const_value.dtype in narrow:
            value.const_value = _tensor(value.const_value)
    for node in all_nodes(copy):
        if any(dtype in narrow for dtype in _named(node)):
            _widen_node(node)
    return copy


def _named(node: ir.Node) -> Iterator[ir.DataType]:
    """Yield the element type that an attribute of `node` names, where one does."""
    attribute = node.attributes.get(_TYPED.get(node.op_type, ""))
    if attribute is None or attribute.is_ref():
        return
    if attribute.type == ir.AttributeType.TENSOR:
        yield attribute.as_tensor().dtype
    elif attribute.type == ir.AttributeType.INT:
        yield ir.DataType(attribute.as_int())


def _widen_node(node: ir.Node) -> None:
    name = _TYPED[node.op_type]
    attribute = node.attributes[name]
    if attribute.type == ir.AttributeType.TENSOR:
        node.attributes[name] = ir.AttrTensor(name, _tensor(attribute.as_tensor()))
    else:
        node.attributes[name] = ir.AttrInt64(name, _WIDE.value)


def _tensor(tensor: ir.TensorProtocol) -> ir.TensorProtocol:
    return ir.Tensor(tensor.numpy().astype(np.float32), name=tensor.name)


def resolved(model: ir.Model) -> Shapes:
    """Return the shapes of `model`; no run helps where onnxruntime lacks kernels."""
    return resolve(model, run=not is_narrow(model))


def bound_shapes(model: ir.Model, shapes: Callable[[], Shapes], bound: ir.Model) -> Shapes:
    """Return the shapes of `bound`, the form of `model` with all inputs bound: the `shapes` of `model` where it has no open dimensions."""
    return shapes() if bound is model else resolved(bound)


# Comparison before the last Sigmoid or Softmax of an output that is the same number everywhere, whatever the model computes.
#
# On noise many detection heads give 0 everywhere: a wrong model gives the same zeros. Then both models run once more without these
# operators, and their operands are compared.

_LAST = frozenset({"Sigmoid", "Softmax"})
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
    both = {name for name in names if all(name in changed for _, changed in copies)}
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
    reason = f"compared before the last {operators}: the output is flat on these inputs"
    return replace(before, reason=f"{reason}; {before.reason}" if before.reason else reason)


def _names(trials: Sequence[Trial]) -> Iterator[str]:
    return iter(trials[0].results) if trials else iter(())


def _tells_nothing(results: Sequence[Any]) -> bool:
    """Return whether all elements are nearly one number, or all at 0 and 1."""
    if not all(isinstance(result, np.ndarray) and is_inexact(result) and result.size for result in results):
        return False
    flat = np.concatenate([result.astype(np.float64).ravel() for result in results])
    if not np.isfinite(flat).all() or flat.min() < -_SATURATED or flat.max() > 1 + _SATURATED:
        return False
    at_ends = np.minimum(np.abs(flat), np.abs(1 - flat)) <= _SATURATED
    return bool(flat.max() - flat.min() <= _FLAT or at_ends.all())


def _without_last(model: ir.Model, names: set[str]) -> tuple[ir.Model, Mapping[str, str]]:
    """Return a copy of `model` whose outputs `names` come from the operands of their last Sigmoids and Softmaxes.

    Beside it, for each output that has such operators, their types.
    """
    copy = cloned(model)
    sources: dict[str, str] = {}
    for output in [output for output in copy.graph.outputs if output.name in names]:
        last = _last(output)
        if last:
            sources[output.name or ""] = " or ".join(sorted({node.op_type for node in last}))
        for node in last:
            _bypass(copy.graph, node)
    return copy, sources


def _bypass(graph: ir.Graph, node: ir.Node) -> None:
    """Let the operand of `node` take the place and the name of its result (in place)."""
    identity, value = ir.node("Identity", [node.inputs[0]]), node.outputs[0]
    graph.insert_before(node, identity)
    result, name = identity.outputs[0], value.name
    result.type, result.shape = value.type, value.shape
    value.replace_all_uses_with(result, replace_graph_outputs=True)
    value.name, result.name = f"{name}/last", name


def _last(output: ir.Value) -> list[ir.Node]:
    """Return the Sigmoids and Softmaxes whose results are only moved on the way to `output`."""
    nodes: dict[ir.Node, None] = {}
    seen: set[ir.Node] = set()
    pending = [output]
    while pending:
        node = pending.pop().producer()
        if node is None or node in seen or node.domain not in OWN_DOMAINS:
            continue
        seen.add(node)
        if node.op_type in _LAST:
            nodes[node] = None
        elif movement_of(node) not in {"", "converts"}:
            pending += [value for value in node.inputs[: None if node.op_type == "Concat" else 1] if value is not None]
    return list(nodes)


# A quantised model in which some elements of every quantised tensor are one step of quantisation off.
#
# Rounding before a quantisation is of any size after it: a sum in another order crosses from one step to the next. The copy shows how far
# such steps lead in the outputs of a model.

_SHARE = 1 / 64
"""The share of the elements that are one step off, half of them up and half of them down."""

_NO_RANDOM_KERNELS = 22
"""The first opset in which onnxruntime's CPU runs no operator of random numbers, but for Dropout."""


def one_step_off(model: ir.Model, turn: int = 0) -> ir.Model | None:
    """Return a copy of `model` whose quantised tensors are one step off at random elements; None where nothing is quantised.

    The numbers are drawn in the model, anew in each run, from fixed seeds: others in each `turn`.
    """
    copy = cloned(model)
    quantised = [
        (node, zero) for graph in all_graphs(copy) for node in graph if (zero := _zero_point(node)) is not None
    ]
    opset = copy.opset_imports.get("", 1)
    for seed, (node, zero) in enumerate(quantised, turn * len(quantised)):
        _put_off(node, zero, seed, opset)
    return copy if quantised else None


def _zero_point(node: ir.Node) -> ir.Value | None:
    """Return the zero point of the first result of `node`; None where that is not quantised to integers."""
    if node.domain not in OWN_DOMAINS:
        return None
    if node.op_type == "DynamicQuantizeLinear":
        return node.outputs[2]
    form = quantised_form(node)
    index = 2 if quantises(node) else len(node.inputs) if form is None or form.result is None else form.result[1]
    zero = given_input(node, index)
    tensor = None if zero is None else zero.const_value
    fits = tensor is None or (tensor.dtype.is_integer() and tensor.size == 1)
    return zero if fits else None


def makes_quantised(value: ir.Value) -> bool:
    """Return whether the node that makes `value` rounds it to steps of quantisation."""
    node = value.producer()
    return node is not None and node.outputs[0] is value and (quantises(node) or _zero_point(node) is not None)


def _put_off(node: ir.Node, zero: ir.Value, seed: int, opset: int) -> None:
    """Let the readers of the first result of `node` read it with random steps added, inside the range of its element type."""
    graph, stored = node.graph, node.outputs[0]
    assert isinstance(graph, ir.Graph)
    step = ir.node("Constant", [], {"value": ir.tensor(1.0, dtype=ir.DataType.FLOAT)})
    as_float = ir.node("Cast", [stored], {"to": ir.DataType.FLOAT.value})
    draw = _by_dropout if opset >= _NO_RANDOM_KERNELS else _by_uniform_numbers
    steps = draw(as_float.outputs[0], seed)
    moved = ir.node("Add", [as_float.outputs[0], steps[-1].outputs[0]])
    origin = ir.node("Cast", [zero], {"to": ir.DataType.FLOAT.value})
    shifted = ir.node("Sub", [moved.outputs[0], origin.outputs[0]])
    domain = node.domain if quantises(node) else ""
    again = ir.node("QuantizeLinear", [shifted.outputs[0], step.outputs[0], zero], domain=domain)
    nodes = [step, as_float, *steps, moved, origin, shifted, again]
    for i, value in enumerate(value for new in nodes for value in new.outputs):
        value.name = f"{stored.name}/one step off/{i}"
    result = again.outputs[0]
    result.type, result.shape = stored.type, stored.shape
    stored.replace_all_uses_with(result, replace_graph_outputs=True)
    as_float.replace_input_with(0, stored)
    if result.is_graph_output():
        stored.name, result.name = result.name, stored.name
    graph.insert_after(node, nodes)


def _by_uniform_numbers(like: ir.Value, seed: int) -> list[ir.Node]:
    """Return nodes; the last one makes -1, 0 or 1 for each element of `like`."""
    reach = 1 + _SHARE
    drawn = ir.node("RandomUniformLike", [like], {"low": -reach, "high": reach, "seed": float(seed)})
    # The cast drops the fraction: -1, 0 or 1.
    whole = ir.node("Cast", [drawn.outputs[0]], {"to": ir.DataType.INT32.value})
    return [drawn, whole, ir.node("Cast", [whole.outputs[0]], {"to": ir.DataType.FLOAT.value})]


def _by_dropout(like: ir.Value, seed: int) -> list[ir.Node]:
    """Return nodes as above, for opsets in which onnxruntime has no kernel of random numbers: the masks of two Dropouts that train."""
    dropped = ir.node("Constant", [], {"value": ir.tensor(1 - _SHARE / 2, dtype=ir.DataType.FLOAT)})
    trains = ir.node("Constant", [], {"value": ir.tensor(True, dtype=ir.DataType.BOOL)})
    inputs = [like, dropped.outputs[0], trains.outputs[0]]
    # The seeds 0 and 1 give the same numbers, and those of small seeds begin alike.
    seeds = [7919 * (2 * seed + i) for i in (1, 2)]
    drawn = [ir.node("Dropout", inputs, {"seed": number}, num_outputs=2) for number in seeds]
    masks = [ir.node("Cast", [number.outputs[1]], {"to": ir.DataType.FLOAT.value}) for number in drawn]
    return [dropped, trains, *drawn, *masks, ir.node("Sub", [mask.outputs[0] for mask in masks])]


# Comparison of quantised outputs that lets each element be one step of quantisation off.
#
# A product in another order, or by another kernel, rounds otherwise before it is quantised. An element whose exact value lies near the
# border of two steps then becomes the one or the other.


_MOVING_QUANTISED: frozenset[Movement] = frozenset({"renames", "selects", "permutes"})
"""What operators do whose results have elements of their first operand."""


def within_one_step(original: ir.Model) -> OutputComparison:
    """Return a comparison with the outputs of `original`: those that are quantised may be one step off.

    A step is 1 in an output of 8-bit integers, and the scale in an output that DequantizeLinear makes. All other outputs are compared as
    usual.
    """
    steps = _steps(original)

    def compared(name: str, expected: Any, got: Any) -> OutputError:
        if name in steps:
            return _compare_floats(name, expected, got, steps[name])
        return compare_quantised(name, expected, got)

    return compared


def of_last_quantisation(original: ir.Model) -> tuple[frozenset[str], OutputComparison]:
    """Return the outputs of `original` that a quantisation makes, and a comparison in which these may be one step off.

    Their elements are stored numbers, or dequantised ones, which nodes only move after the quantisation.
    """
    outputs = {value.name: value for value in original.graph.outputs if value.name}
    stored = frozenset(name for name, value in outputs.items() if _are_all(value, makes_quantised))
    steps = {name: step for name, step in _steps(original).items() if name in outputs}
    dequantised = frozenset(name for name in steps if _are_all(outputs[name], _is_dequantised))

    def compared(name: str, expected: Any, got: Any) -> OutputError:
        error = compare_values(name, expected, got)
        if name not in stored | dequantised or error.equal or not np.isfinite(error.max_abs):
            return error
        allowed = error.tolerance * np.abs(expected.astype(np.float64)) + error.floor
        off = np.abs(expected.astype(np.float64) - got.astype(np.float64)) > allowed
        if name in dequantised:
            error = _compare_floats(name, expected, got, steps[name])
        else:
            why = f"{expected.dtype}: one step of quantisation"
            error = replace(error, equal=error.max_abs <= 1, floor=1.0, why=why)
        count = f"{int(off.sum()):,} of {off.size:,} elements are one step of quantisation off"
        return replace(error, reason=count) if error.equal else error

    return stored | dequantised, compared


def _is_dequantised(value: ir.Value) -> bool:
    """Return whether `value` is dequantised from what a quantisation makes."""
    node = value.producer()
    first = None if node is None or not dequantises(node) else node.inputs[0]
    return first is not None and _are_all(first, makes_quantised)


def _are_all(value: ir.Value, wanted: Callable[[ir.Value], bool]) -> bool:
    """Return whether all elements of `value` come from `wanted` values, by nodes that only move them."""
    seen: set[ir.Value] = set()
    pending = [value]
    while pending:
        member = pending.pop()
        node = member.producer()
        if member in seen or wanted(member):
            continue
        if node is None or movement_of(node) not in _MOVING_QUANTISED | {"joins"}:
            return False
        seen.add(member)
        pending += [read for read in node.inputs[: None if node.op_type == "Concat" else 1] if read is not None]
    return True


def _steps(model: ir.Model) -> Mapping[str, Array]:
    """Return the step of each output that is dequantised, in a shape that broadcasts with the output."""
    constants = Constants(model)
    steps = {value.name or "": _step(value, constants) for value in model.graph.outputs}
    return {name: step for name, step in steps.items() if step is not None}


def _step(value: ir.Value, constants: Constants) -> Array | None:
    node, is_moved = value.producer(), False
    while node is not None and movement_of(node) in _MOVING_QUANTISED:
        first = node.inputs[0]
        node, is_moved = None if first is None else first.producer(), True
    if node is None or not dequantises(node):
        return None
    scale = node.inputs[1]
    if scale is None or scale not in constants:
        return None
    step = np.abs(constants.array(scale).astype(np.float64))
    if step.size == 1:
        return step.reshape(())
    rank = None if node.outputs[0].shape is None else len(node.outputs[0].shape)
    if is_moved or step.ndim != 1 or rank is None:
        return None
    dims = [1] * rank
    dims[node.attributes.get_int("axis", 1)] = step.size
    return step.reshape(dims)


def _compare_floats(name: str, expected: Any, got: Any, step: Array) -> OutputError:
    """Compare a dequantised output: each element may be off by `step`, and by the rounding of a float besides."""
    error = compare_values(name, expected, got)
    if error.equal or not isinstance(expected, np.ndarray) or not np.isfinite(error.max_abs):
        return error
    before, after = expected.astype(np.float64), got.astype(np.float64)
    allowed = step + error.tolerance * np.abs(before) + error.floor
    is_within = bool((np.abs(before - after) <= allowed).all())
    why = f"{error.why}, and one step of quantisation"
    return replace(error, equal=is_within, floor=error.floor + float(step.max()), why=why)


_FACTOR = 2
_INPUTS = "inputs one unit in the last place apart"
_NUDGES = 3


def judge(
    original: ir.Model,
    rewritten: ir.Model,
    progress: Progress = silent,
    compared: OutputComparison | None = None,
    content: bytes | None = None,
) -> Verdict:
    """Run both models on the same inputs; an output may be off by the usual tolerance, or twice as far as rounding leads.

    Rounding changes inputs by one unit in the last place, and quantised tensors of `original`, where it has some, by one step. A
    comparison of outputs that is given decides alone. An output that is flat on these inputs is compared before its last Sigmoid or
    Softmax. `content` are the bytes of the file of `rewritten`, where they are known.

    Raises ModelError where onnxruntime refuses one of the models.
    """
    models = same_draws(original, rewritten)
    trials, dims = run_original(models.first, progress=progress)

    def judged(first: ir.Model, second: ir.Model, ran: list[Trial]) -> Verdict:
        if compared is not None:
            return compare_with(ran, second, dims, progress, compared)
        held = content if second is rewritten else None
        return excused(compare_with(ran, second, dims, progress, content=held), first, second, ran)

    pair = models.first, models.second
    return models.judged(compare_before(judged(*pair, trials), trials, *pair, judged))


def compare(
    original: ir.Model,
    other: ir.Model,
    *,
    progress: Progress = silent,
    file: Path | None = None,
    content: bytes | None = None,
) -> Verdict:
    """Run both models on the same two sets of random inputs and compare every output.

    `file` is that of the original, as it is, and `content` are the bytes of the file of the other, where they are known.

    Symbolic dimensions that are not bound get sizes with which `original` runs. Raises ModelError where onnxruntime refuses one of
    the models, or where no such sizes are found.
    """
    models = same_draws(original, other)
    runner = repeatable_session(original, file) if models.first is original else None
    trials, dims = run_original(models.first, runner=runner, progress=progress)
    del runner  # two sessions would double the memory
    content = content if models.second is other else None
    return models.judged(compare_with(trials, models.second, dims, progress, content=content))


def excused(verdict: Verdict, original: ir.Model, rewritten: ir.Model, trials: Iterable[Trial]) -> Verdict:
    """Return `verdict` with those outputs passed, too, that are off by no more than rounding in `original` explains.

    That is twice what one unit in the last place leads to, or, of floats of 16 bits, their tolerance where both models agree in float32.
    """
    trials = list(trials)
    measured = _without(verdict, unsteady_outputs(original) | unsteady_outputs(rewritten))
    if not measured.equal:
        measured = excused_by_one_step(measured, original, rewritten, trials)
    if not measured.equal:
        measured = _excused_by_units(measured, original, trials)
    if not measured.equal and (narrow := halves(original)):
        measured = _excused_in_float(measured, original, rewritten, trials, narrow)
    return _with(verdict, measured)


def _without(verdict: Verdict, names: Collection[str]) -> Verdict:
    """Return `verdict` on the outputs that are not among `names`."""
    return replace(verdict, outputs=tuple(output for output in verdict.outputs if output.name not in names))


def _with(verdict: Verdict, measured: Verdict) -> Verdict:
    """Return `verdict` with the outputs of `measured` as these are there."""
    by_name = {output.name: output for output in measured.outputs}
    return replace(verdict, outputs=tuple(by_name.get(output.name, output) for output in verdict.outputs))


def excused_by_one_step(verdict: Verdict, original: ir.Model, other: ir.Model, trials: list[Trial]) -> Verdict:
    """Return `verdict` with those outputs passed, too, that a quantisation makes, and that are at most one step off.

    The rounding before a quantisation crosses from one step to the next where an exact value lies near the border.
    """
    unsteady, compared = of_last_quantisation(original)
    unsteady -= unsteady_outputs(original) | unsteady_outputs(other)
    if all(output.equal or output.name not in unsteady for output in verdict.outputs):
        return verdict
    effects = {
        output.name: output
        for output in compare_with(trials, other, {}, compared=compared).outputs
        if output.equal and output.name in unsteady
    }
    return replace(
        verdict,
        outputs=tuple(output if output.equal else effects.get(output.name, output) for output in verdict.outputs),
    )


def _excused_by_units(verdict: Verdict, original: ir.Model, trials: list[Trial]) -> Verdict:
    stepping = one_step_off(original)
    kinds = "f" if stepping is None else "fiu"
    reach = moved_by_rounding(_runners(original, stepping), trials, kinds)
    cause = _INPUTS if stepping is None else f"{_INPUTS}, and quantised tensors one step apart,"
    outputs = tuple(output if output.equal else _within(output, reach, cause) for output in verdict.outputs)
    return replace(verdict, outputs=outputs)


def _excused_in_float(
    verdict: Verdict, original: ir.Model, rewritten: ir.Model, trials: list[Trial], narrow: set[ir.DataType]
) -> Verdict:
    """Return `verdict` with those outputs passed that are equal in float, and off by no more than what is `narrow` may be."""
    first, second = (widened(model, HALVES) for model in (original, rewritten))
    try:
        runner = repeatable_session(first)
        wide = [replace(trial, feeds=fed, results=runner.run(fed)) for trial in trials for fed in [_wide(trial.feeds)]]
        in_float = excused(compare_with(wide, second, {}), first, second, wide)
    except ModelError:  # an operator has no kernel of floats, and says nothing of the two
        return verdict
    coarsest = max(precision_of(dtype.numpy()) for dtype in narrow)
    loosely = compare_with(trials, rewritten, {}, compared=partial(compare_values, coarsest=coarsest))
    fine = {output.name for output in in_float.outputs if output.equal} & {
        output.name for output in loosely.outputs if output.equal
    }
    why = "equal in float32, and within the tolerance of floats of 16 bits"
    outputs = (replace(output, equal=True, reason=why) if output.name in fine else output for output in verdict.outputs)
    return replace(verdict, outputs=tuple(outputs))


def _wide(feeds: Mapping[str, Any]) -> dict[str, Any]:
    """Return `feeds` with arrays of 16-bit floats in float32."""
    types = [dtype.numpy() for dtype in HALVES]
    return {
        name: fed.astype(np.float32) if isinstance(fed, np.ndarray) and fed.dtype in types else fed
        for name, fed in feeds.items()
    }


def _within(output: OutputError, reach: Mapping[str, float], cause: str) -> OutputError:
    allowed = _FACTOR * reach.get(output.name, 0.0)
    if not output.max_abs <= allowed:
        return output
    return replace(output, equal=True, reason=f"{cause} move it by {allowed / _FACTOR:.2g}")


def _runners(original: ir.Model, stepping: ir.Model | None) -> list[ModelRunner]:
    """Return what runs the model at each nudge: `stepping` where there is one, which draws other steps in each run.

    A model with random operators begins each run anew, to draw the same numbers in all; so its steps have other seeds at each nudge.
    """
    if not drawn_outputs(original):
        return [session_of(original if stepping is None else stepping)] * _NUDGES
    if stepping is None:
        return [repeatable_session(original)] * _NUDGES
    copies = (one_step_off(original, turn) for turn in range(_NUDGES))
    return [repeatable_session(copy) for copy in copies if copy is not None]


def moved_by_rounding(runners: Collection[ModelRunner], trials: Iterable[Trial], kinds: str = "f") -> dict[str, float]:
    """Return how far each output moves, at most, when the inputs of the trials change by one unit in the last place.

    Each of `runners` runs once on each trial. `kinds` are those of numpy whose arrays may move; integers of more than 8 bits never do.
    """
    random = np.random.default_rng(0)
    reach: dict[str, float] = {}
    for trial in trials:
        for runner in runners:
            got = runner.run({name: _nudged(value, random) for name, value in trial.feeds.items()})
            for name, value in trial.results.items():
                reach[name] = max(reach.get(name, 0.0), _distance(value, got[name], kinds))
    return reach


def _nudged(value: Any, random: np.random.Generator) -> Any:
    """Return a float array with each element one unit up or down; anything else as it is."""
    if not isinstance(value, np.ndarray) or value.dtype.kind != "f":
        return value
    way = np.where(random.random(value.shape) < 0.5, -np.inf, np.inf).astype(value.dtype)
    with np.errstate(over="ignore"):  # one unit above the largest number is infinite
        return np.asarray(np.nextafter(value, way))  # of a scalar NumPy makes a number


def _distance(expected: Any, got: Any, kinds: str) -> float:
    """Return the largest difference of two arrays that may move; 0 for all others, which must be equal."""
    if not _may_move(expected, kinds) or not _may_move(got, kinds) or expected.shape != got.shape:
        return 0.0
    with np.errstate(invalid="ignore"):  # the difference of two infinities
        off: Array = np.abs(expected.astype(np.float64) - got.astype(np.float64))
    return float(off[np.isfinite(off)].max(initial=0.0))


def _may_move(value: Any, kinds: str) -> bool:
    return (
        isinstance(value, np.ndarray) and value.dtype.kind in kinds and (value.dtype.kind == "f" or value.itemsize == 1)
    )
