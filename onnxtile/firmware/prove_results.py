"""The proof of a program in C by the results of its nodes, for quantised models, and to name the node that is wrong.

Kernels of different machines round sums of floats differently before they quantise them: an element is one step off, and the
operators that follow make more of it, or hide it. So each result is compared where its node has made it, at its planned address. That of
onnxruntime takes its place then. All nodes compute on onnxruntime's operands, and a tensor that is overwritten too early is seen where it
is read.
"""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

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
from onnxtile.shapes.opened_calls import Unfolded, fold
from onnxtile.system.errors import Mismatch
from onnxtile.system.runtime import Array
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
) -> ComparedResults | None:
    """Return how the results of all nodes of `program` compare in all `runs`, each on the operands that onnxruntime has.

    None where no node rounds to steps of quantisation: then outputs have no reason to be off. `output` begins with the outputs of the
    program as it is written: with looks at its results, but nothing replaced, it must give the same bytes. Raises Mismatch that names
    the first node whose result is off by more than its operator may be, UsageError where a tool fails.
    """
    source = written(program.with_checks(), title, "file")  # a large text of weights takes a compiler long
    expected = list(_expected(program, opened, runs))
    with tempfile.TemporaryDirectory(prefix="onnxtile-") as name:
        folder = Path(name)
        executable = compiled_program(source, runs, tools, folder)
        if not output.startswith(output_of_run(executable, source, runs, tools)):
            raise Mismatch("the program in C computes something else where its calls are no loops", hint=REPORT)
        (folder / "expected.bin").write_bytes(b"".join(array.tobytes() for array in expected))
        output_of_run(executable, source, runs, tools)
        got = (folder / "got.bin").read_bytes()
    counts: Counter[tuple[str, str]] = Counter()
    at = 0
    for result, array in zip([*program.results] * len(runs), expected, strict=True):
        how = _how(result, array, tensor_of(got[at : at + array.nbytes], result.tensor), coarsest)
        counts[how, result.operator] += 1
        at += array.nbytes
    if not program.is_rounded:
        return None
    equal, one_step, within = (sum(counts[key] for key in counts if key[0] == how) for how in _HOW)
    operators = sorted({operator for how, operator in counts if how == _STEP})
    return ComparedResults(len(expected), equal, one_step, within, tuple(operators))


def _expected(program: CProgram, opened: Unfolded, runs: Sequence[CheckedRun]) -> Iterator[Array]:
    """Yield the results of the nodes of `program` in onnxruntime, run after run."""
    model = opened.model.clone()
    fold(model)
    session = exposing(model, [result.name for result in program.results])
    inputs = {value.name or "" for value in model.graph.inputs}
    for run in runs:
        found = session.run({name: array for name, array in run.inputs.items() if name in inputs})
        yield from _in_order(program, found)


def _in_order(program: CProgram, found: Mapping[str, Array]) -> Iterator[Array]:
    for result in program.results:
        yield np.ascontiguousarray(found[result.name]).reshape(result.tensor.sizes)


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
