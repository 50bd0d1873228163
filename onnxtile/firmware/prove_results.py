"""The proof of a program in C by the results of its nodes: for quantised models, and to name the node that is wrong.

Kernels of different machines round sums of floats differently. Before a quantisation an element is one step off then, and the
operators that follow make more of it, or hide it. So each result is compared where its node has made it, at its planned address. That of
onnxruntime takes its place then. All nodes compute on onnxruntime's operands, and a tensor that is overwritten too early is seen where it
is read.
"""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from onnxtile.firmware.islands import is_written_as_constant, on_integers
from onnxtile.firmware.program import CProgram, NodeResult
from onnxtile.firmware.prove import (
    REPORT,
    CheckedRun,
    ComparedResults,
    Tools,
    compiled_program,
    output_of_run,
    tensor_of,
)
from onnxtile.firmware.write import written
from onnxtile.model.submodel import exposing
from onnxtile.model.topology import all_values
from onnxtile.shapes.opened_calls import Unfolded, fold, written_out
from onnxtile.system.dataclass import dataclass
from onnxtile.system.errors import Mismatch
from onnxtile.system.runtime import Array, Session
from onnxtile.verification.values import OutputError, compare_values

_HOW = _EQUAL, _STEP, _WITHIN = "equal", "one step", "within"
"""How a result compares: every byte, within one step of quantisation, or a float within the tolerance."""


def compared_results(
    program: CProgram,
    title: str,
    opened: Unfolded,
    runs: Sequence[CheckedRun],
    tools: Tools,
    output: bytes,
    coarsest: float = 0.0,
) -> ComparedResults:
    """Return how the results of all nodes of `program` compare in all `runs`, each on the operands that onnxruntime has.

    `output` begins with the outputs of the program as it is written: with looks at its results, but nothing replaced, it must give the
    same bytes. With all results replaced, its outputs must have onnxruntime's bytes. Raises Mismatch that names the first node whose
    result is off by more than its operator may be, UsageError where a tool fails.
    """
    source = written(program.with_checks(), title, "file")  # a large text of weights takes a compiler long
    names = [*(result.name for result in program.results), *(port.name for port in program.outputs)]
    values = list(_values(opened, names, runs))
    expected = [np.asarray(each[result.name], order="C") for each in values for result in program.results]
    with tempfile.TemporaryDirectory(prefix="onnxtile-") as name:
        folder = Path(name)
        executable = compiled_program(source, runs, tools, folder)
        if not output.startswith(output_of_run(executable, source, runs, tools)):
            raise Mismatch("the program in C computes something else where its calls are no loops", hint=REPORT)
        (folder / "expected.bin").write_bytes(b"".join(array.tobytes() for array in expected))
        replaced = output_of_run(executable, source, runs, tools)
        got = (folder / "got.bin").read_bytes()
    counts: Counter[str] = Counter()
    steps: list[SteppedResult] = []
    at = 0
    for index, (result, array) in enumerate(zip([*program.results] * len(runs), expected, strict=True)):
        elements = tensor_of(got[at : at + array.nbytes], result.tensor.dtype, array.shape)
        how = _how(result, array, elements, coarsest)
        counts[how] += 1
        at += array.nbytes
        if how == _STEP:
            steps.append(SteppedResult(index // len(program.results), result, elements))
    if replaced != b"".join(np.asarray(each[port.name]).tobytes() for each in values for port in program.outputs):
        raise Mismatch("an output of the program in C is not the result of its node", hint=REPORT)
    operators = sorted({step.result.operator.partition(".")[0] for step in steps})
    nodes = dict.fromkeys(step.result.name for step in steps)
    return ComparedResults(
        len(expected),
        counts[_EQUAL],
        counts[_STEP],
        counts[_WITHIN],
        tuple(operators),
        tuple(nodes),
        _count_as_integers(opened, runs, steps),
    )


@dataclass(frozen=True)
class SteppedResult:
    """A result in the run of number `run` that is one step of quantisation off, and its elements in C."""

    run: int
    result: NodeResult
    elements: Array


def _count_as_integers(opened: Unfolded, runs: Sequence[CheckedRun], steps: Sequence[SteppedResult]) -> int:
    """Return how many of `steps` are what onnxruntime's operator on integers makes of the same operands.

    The reference of a quantised island is its nodes in floats. Where a sum is half a step from two numbers, these round otherwise than
    the operator on integers that onnxruntime puts in their place when it optimises.
    """
    model, shapes, constants = opened
    makers = {value.name: node for node in model.graph for value in node.outputs}
    islands: dict[str, tuple[Session, dict[str, str]]] = {}
    for name in dict.fromkeys(step.result.name for step in steps):
        node = makers[name]
        if node.op_identifier() in model.functions and len(node.outputs) == 1:
            inside = on_integers(written_out(node, model, shapes, constants))
            given = [value for value in dict.fromkeys(node.inputs) if value is not None]
            given = [value for value in given if not is_written_as_constant(value, constants)]
            taken = [value for value in inside.model.graph.inputs if value not in inside.constants]
            names = {inner.name or "": outer.name or "" for inner, outer in zip(taken, given, strict=True)}
            for value in all_values(inside.model):
                value.shape = value.shape if value in inside.constants else None  # each run has its own sizes
            islands[name] = exposing(inside.model, [inside.model.graph.outputs[0].name or ""]), names
    operands = dict.fromkeys(name for _, names in islands.values() for name in names.values())
    values = list(_values(opened, operands, runs)) if islands else []
    count = 0
    for step in steps:
        if step.result.name in islands:
            session, names = islands[step.result.name]
            (array,) = session.run({inner: values[step.run][name] for inner, name in names.items()}).values()
            count += np.asarray(array).tobytes() == step.elements.tobytes()
    return count


def _values(opened: Unfolded, names: Iterable[str], runs: Sequence[CheckedRun]) -> Iterator[Mapping[str, Array]]:
    """Yield the values `names` of the main graph in onnxruntime, run after run."""
    model = opened.model.clone()
    fold(model)
    inputs = {value.name or "" for value in model.graph.inputs}
    wanted = [name for name in names if name not in inputs]
    session = exposing(model, wanted) if wanted else None
    for run in runs:
        given = {name: array for name, array in run.inputs.items() if name in inputs}
        yield {**run.inputs, **({} if session is None else session.run(given))}


def _how(result: NodeResult, expected: Array, got: Array, coarsest: float) -> str:
    """Return whether a result is equal, within one step of quantisation, or within the tolerance. Raises Mismatch."""
    if expected.tobytes() == got.tobytes():
        return _EQUAL
    error = compare_values(result.name, expected, got, coarsest=coarsest)
    if result.is_rounded and error.max_abs <= 1:
        return _STEP
    if error.equal:
        return _WITHIN
    raise Mismatch(f"the program in C does not compute what the model does: {_off(result, error)}", hint=REPORT)


def _off(result: NodeResult, error: OutputError) -> str:
    reason = f": {error.reason}" if error.reason else ""
    return f"on the same operands {result.name!r} ({result.operator}) is off by {error.max_abs:.3g}{reason}"
