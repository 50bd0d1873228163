"""Proofs of an offline memory plan in a TensorFlow Lite file: its operators replayed on a map of the arena, and its runs.

The map says for each 16 bytes which tensor was last written there. The proofs share nothing with the planning but the reader of the file.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from onnxtile.deployment.tflite_model import (
    ONLINE,
    MicroGraph,
    MicroOperator,
    offsets_in,
    read_tflite,
    with_one_operator,
)
from onnxtile.system.dataclass import dataclass
from onnxtile.system.errors import CheckFailed, ModelError
from onnxtile.system.files import temporary_folder

_UNIT = 16
_NOBODY = -1

_LEAVES_ELEMENTS = {"EXPAND_DIMS", "RESHAPE"}
_ONE_OPERAND = {
    *("ABS", "CEIL", "COS", "ELU", "EXP", "FLOOR", "HARD_SWISH", "LEAKY_RELU", "LOG", "LOGICAL_NOT", "LOGISTIC"),
    *("NEG", "RELU", "RELU6", "ROUND", "RSQRT", "SIN", "SQRT", "SQUARE", "TANH"),
}
_TWO_OPERANDS = {"ADD", "DIV", "MAXIMUM", "MINIMUM", "MUL", "SQUARED_DIFFERENCE", "SUB"}
"""Operators that may write over an operand of the same shape, from TensorFlow Lite Micro's kernels, for this check alone."""


def require_sound(data: bytes, arena: int) -> None:
    """Raise CheckFailed unless the offline memory plan of the file `data` is right for its graph, in `arena` bytes."""
    graphs = read_tflite(data, "the planned model")
    fault = next(_faults(graphs, offsets_in(data), arena), None)
    if fault is not None:
        raise CheckFailed(f"the plan is not sound: {fault}", hint="please report it with the model")


def _faults(graphs: Sequence[MicroGraph], offsets: Sequence[int] | None, arena: int) -> Iterator[str]:
    starts = [0]
    for graph in graphs:
        starts.append(starts[-1] + len(graph.tensors))
    if offsets is None or len(offsets) != starts[-1]:
        yield f"it has offsets for {len(offsets or ())} of {starts[-1]} tensors"
        return
    replay = _MicroReplay(graphs, starts, offsets, np.full(-(-arena // _UNIT), _NOBODY, np.int32))
    yield from replay.misplaced(arena)
    if not replay.names:
        yield from replay.run(0)


@dataclass
class _MicroReplay:
    """The map `written` of the arena while the subgraphs run. A tensor is a number: the start of its subgraph and its index.

    `names` are the tensors that are misplaced. `same` has the tensor of which a view has the elements.
    """

    graphs: Sequence[MicroGraph]
    starts: Sequence[int]
    offsets: Sequence[int]
    written: npt.NDArray[np.int32]
    names: list[str] = field(default_factory=list)
    same: dict[int, int] = field(default_factory=dict)

    def misplaced(self, arena: int) -> Iterator[str]:
        """Yield the tensors that are outside of the arena or not aligned; constants and variables have no offset."""
        for number, graph in enumerate(self.graphs):
            used = {i for op in graph.operators for i in (*op.inputs, *op.outputs)} | {*graph.inputs, *graph.outputs}
            for index, tensor in enumerate(graph.tensors):
                offset = self.offsets[self.starts[number] + index]
                needs = not tensor.is_constant and not tensor.is_variable and tensor.size > 0 and index in used
                if needs != (offset >= 0) or (needs and (offset % _UNIT or offset + tensor.size > arena)):
                    self.names.append(tensor.name)
                    yield f"{tensor.name!r} of {tensor.size} bytes lies at {offset}"

    def run(self, number: int) -> Iterator[str]:
        """Write the inputs of a subgraph, run its operators, and read its outputs."""
        graph = self.graphs[number]
        self._write(number, graph.inputs)
        yield from self._unread(number, graph.inputs, "the start")
        for operator in graph.operators:
            yield from self._operator(number, operator)
        yield from self._unread(number, graph.outputs, "the end")

    def _operator(self, number: int, operator: MicroOperator) -> Iterator[str]:
        where = operator.name
        yield from self._unread(number, operator.inputs, where)
        # A loop runs its condition and its body again; its outputs hold the values in between.
        if operator.name == "WHILE":
            self._write(number, operator.outputs)
        for body in operator.bodies * (2 if operator.name == "WHILE" else 1):
            yield from self.run(body)
            yield from self._unread(number, operator.inputs, where)
            if operator.name == "WHILE":
                yield from self._unread(number, operator.outputs, where)
        for result in operator.outputs:
            for operand in operator.inputs:
                if self._share(number, result, operand) and not self._may_share(number, operator, result, operand):
                    name = self.graphs[number].tensors[result].name
                    yield f"{where} writes {name!r} over an operand that it still reads"
        keeps = self._kept(number, operator)
        self._write(number, operator.outputs)
        yield from self._unread(number, operator.outputs, where)
        for span, before in keeps:  # a view leaves what was there readable by both names
            self.same[self.written[span][0]] = before

    def _kept(self, number: int, operator: MicroOperator) -> list[tuple[slice, int]]:
        """Return the bytes that `operator` leaves as they are, with the tensor that wrote them."""
        if operator.name not in _LEAVES_ELEMENTS or not operator.outputs or not operator.inputs:
            return []
        source, result = (self._span(number, i) for i in (operator.inputs[0], operator.outputs[0]))
        if source is None or result is None or source != result:
            return []
        return [(source, self._first(int(self.written[source][0])))]

    def _first(self, key: int) -> int:
        while key in self.same:
            key = self.same[key]
        return key

    def _span(self, number: int, index: int) -> slice | None:
        """Return the place of a tensor in the map; None where it has no bytes in the arena."""
        if index < 0 or self.offsets[self.starts[number] + index] < 0:
            return None
        offset, size = self.offsets[self.starts[number] + index], self.graphs[number].tensors[index].size
        return slice(offset // _UNIT, -(-(offset + size) // _UNIT))

    def _write(self, number: int, indices: Iterable[int]) -> None:
        for index in indices:
            span = self._span(number, index)
            if span is not None:
                self.same.pop(self.starts[number] + index, None)
                self.written[span] = self.starts[number] + index

    def _unread(self, number: int, indices: Iterable[int], where: str) -> Iterator[str]:
        """Yield the tensors whose bytes have changed since they were written."""
        for index in indices:
            span = self._span(number, index)
            if span is None:
                continue
            wanted = self._first(self.starts[number] + index)
            for key in np.unique(self.written[span]).tolist():
                if self._first(key) != wanted:
                    yield f"{self.graphs[number].tensors[index].name!r} has changed before {where} reads it"
                    break

    def _share(self, number: int, result: int, operand: int) -> bool:
        span, other = self._span(number, result), self._span(number, operand)
        return span is not None and other is not None and span.start < other.stop and other.start < span.stop

    def _may_share(self, number: int, operator: MicroOperator, result: int, operand: int) -> bool:
        tensors = self.graphs[number].tensors
        written, read = tensors[result], tensors[operand]
        if self._span(number, result) != self._span(number, operand) or written.dtype != read.dtype:
            return False
        if operator.name in _LEAVES_ELEMENTS:
            return operand == operator.inputs[0] and written.size == read.size
        is_elementwise = operator.name in _ONE_OPERAND | _TWO_OPERANDS
        return is_elementwise and written.shape == read.shape and operator.inputs.count(operand) == 1


# Runs of TensorFlow Lite Micro, in a separate process: a wrong model may end the compiled code.
#
# As a program this file reads the names of models and of a file of results from its arguments.

_SECONDS = 600
_INFERENCES = 2
"""Runs of each model, one after the other with other inputs: what a variable keeps counts, too."""
_HEAD = re.compile(r"Arena allocation head (\d+) bytes")


@dataclass(frozen=True)
class MicroRun:
    """A model that ran: `head` is the bytes that TensorFlow Lite Micro took for tensors and scratch, `outputs` the bytes of its outputs."""

    head: int
    outputs: tuple[bytes, ...]


def is_installed() -> bool:
    """Return whether the extra tflite-micro is installed."""
    return find_spec("tflite_micro") is not None


def micro_runs(models: Sequence[bytes], arena: int) -> tuple[MicroRun, ...]:
    """Run each of `models` on the same random inputs, in an arena of `arena` bytes.

    Raises ModelError with the reason of TensorFlow Lite Micro where it does not run one.
    """
    with temporary_folder() as folder:
        return tuple(_run(data, arena, folder) for data in models)


def scratch_bytes(data: bytes, graph: MicroGraph, others: int) -> dict[int, int]:
    """Return the bytes that operators of `graph`, the first subgraph of the model `data`, need beside their inputs and outputs, by place.

    Each is measured alone: TensorFlow Lite Micro prepares a model of this operator, of which all bytes are live at once. Operators that
    run subgraphs are left out. The other subgraphs have `others` tensors. Raises ModelError where one cannot be prepared.
    """
    positions = [position for position, operator in enumerate(graph.operators) if not operator.bodies]
    if not positions:
        return {}
    # Tensors of other operators end at address 0, so that none of their bytes count.
    sizes = [-(-tensor.size // _UNIT) * _UNIT for tensor in graph.tensors]
    models, without_plan = [], []
    for position in positions:
        operator = graph.operators[position]
        inputs = [i for i in dict.fromkeys(operator.inputs) if i >= 0 and graph.tensors[i].is_planned]
        outputs = list(operator.outputs)
        used = {*inputs, *outputs}
        offsets = [-sizes[i] if t.is_planned and i not in used else ONLINE for i, t in enumerate(graph.tensors)]
        models.append(with_one_operator(data, position, inputs, outputs, [*offsets, *[ONLINE] * others]))
        without_plan.append(sum(sizes[i] for i in used if graph.tensors[i].is_planned))
    with temporary_folder() as folder:
        for position, model in zip(positions, models, strict=True):
            (folder / f"{position}.tflite").write_bytes(model)
        output = _output_of("heads", str(folder), str(4 * len(data) + sum(sizes) + 2**20))
    heads = map(int, _HEAD.findall(output))
    return {
        position: head - size
        for position, head, size in zip(positions, heads, without_plan, strict=True)
        if head > size
    }


def _output_of(*arguments: str) -> str:
    """Run this file as a program with `arguments`; return its stderr. Raises ModelError where it fails."""
    command = [sys.executable, "-m", __name__, *arguments]
    try:
        done = subprocess.run(command, capture_output=True, check=False, timeout=_SECONDS, env=_environment())
    except subprocess.TimeoutExpired:
        raise ModelError(f"TensorFlow Lite Micro did not end in {_SECONDS} seconds") from None
    errors = done.stderr.decode("utf-8", "replace")
    if done.returncode or not _HEAD.search(errors):
        raise ModelError(f"TensorFlow Lite Micro does not run the model: {_reason(errors, done.returncode)}")
    return errors


def _run(data: bytes, arena: int, folder: Path) -> MicroRun:
    model, results = folder / "model.tflite", folder / "results.npz"
    model.write_bytes(data)
    head = _HEAD.findall(_output_of("run", str(model), str(results), str(arena)))
    with np.load(results) as arrays:
        return MicroRun(int(head[-1]), tuple(arrays[name].tobytes() for name in sorted(arrays.files)))


def _environment() -> Mapping[str, str]:
    import os

    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}


def _reason(errors: str, code: int) -> str:
    """Return the line that says most: what the runtime printed before Python's own traceback, or else the exit `code`."""
    lines = (line.strip() for line in errors.splitlines())
    reasons = (line for line in lines if line and not line.startswith(("Traceback", "File ", "[Recording")))
    return next(reasons, f"exit code {code}")


def _inputs(details: Mapping[str, Any], random: np.random.Generator) -> Any:
    """Return a random tensor; whole numbers of 32 and 64 bits are small, because they may be indices."""
    dtype, shape = np.dtype(details["dtype"]), tuple(details["shape"])
    if dtype.kind == "f":
        return random.standard_normal(shape).astype(dtype)
    if dtype.kind == "b":
        return random.integers(0, 2, shape).astype(dtype)
    low, high = (np.iinfo(dtype).min, np.iinfo(dtype).max) if dtype.itemsize < 4 else (0, 1)
    return random.integers(low, high, shape, endpoint=True).astype(dtype)


def main(model: str, results: str, arena: str) -> None:
    """Run the model in the file `model`, and write its outputs to `results`; the allocations go to stderr."""
    from tflite_micro import runtime

    data = Path(model).read_bytes()
    graph = read_tflite(data, "the model")[0]
    interpreter = runtime.Interpreter.from_bytes(data, arena_size=int(arena))
    random = np.random.default_rng(0)
    outputs = {}
    for turn in range(_INFERENCES):
        for index in range(len(graph.inputs)):
            interpreter.set_input(_inputs(interpreter.get_input_details(index), random), index)
        interpreter.invoke()
        for index in range(len(graph.outputs)):
            outputs[f"{turn}.{index:04}"] = interpreter.get_output(index)
    interpreter.print_allocations()
    np.savez(results, **outputs)


def heads(folder: str, arena: str) -> None:
    """Prepare the models in `folder`, by the numbers that are their names; their allocations go to stderr."""
    from tflite_micro import runtime

    for file in sorted(Path(folder).iterdir(), key=lambda file: int(file.stem)):
        runtime.Interpreter.from_bytes(file.read_bytes(), arena_size=int(arena)).print_allocations()


if __name__ == "__main__":
    (main if sys.argv[1] == "run" else heads)(*sys.argv[2:])
