"""Runs TensorFlow Lite models in TensorFlow Lite Micro, in a separate process: a wrong model may end the compiled code.

As a program it reads the names of models and of a file of results from its arguments.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from onnxtile.deployment.tflite_model import ONLINE, MicroGraph, with_one_operator
from onnxtile.deployment.tflite_plan import UNIT
from onnxtile.planning.offsets.problem import align
from onnxtile.system.dataclass import dataclass
from onnxtile.system.errors import ModelError
from onnxtile.system.files import temporary_folder

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
    sizes = [align(tensor.size, UNIT) for tensor in graph.tensors]
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
    counts = _ends(data)
    interpreter = runtime.Interpreter.from_bytes(data, arena_size=int(arena))
    random = np.random.default_rng(0)
    outputs = {}
    for turn in range(_INFERENCES):
        for index in range(counts[0]):
            interpreter.set_input(_inputs(interpreter.get_input_details(index), random), index)
        interpreter.invoke()
        for index in range(counts[1]):
            outputs[f"{turn}.{index:04}"] = interpreter.get_output(index)
    interpreter.print_allocations()
    np.savez(results, **outputs)


def _ends(data: bytes) -> tuple[int, int]:
    from onnxtile.deployment.tflite_model import read_tflite

    graph = read_tflite(data, "the model")[0]
    return len(graph.inputs), len(graph.outputs)


def heads(folder: str, arena: str) -> None:
    """Prepare the models in `folder`, by the numbers that are their names; their allocations go to stderr."""
    from tflite_micro import runtime

    for file in sorted(Path(folder).iterdir(), key=lambda file: int(file.stem)):
        runtime.Interpreter.from_bytes(file.read_bytes(), arena_size=int(arena)).print_allocations()


if __name__ == "__main__":
    (main if sys.argv[1] == "run" else heads)(*sys.argv[2:])
