"""onnxruntime: sessions, runs, and runs with tensors at given addresses (the only room that knows onnxruntime).

Everything here runs with graph optimisation and prepacking off and a fixed number of threads, so that a model computes
exactly the kernels it is written with, and two runs of the same kernels give the same bits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from onnxtile.errors import ModelError

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True)
class Binding:
    """A tensor in memory that somebody else owns: the address of its first byte, its shape, and its ONNX element type."""

    address: int
    shape: tuple[int, ...]
    element_type: int


@dataclass(frozen=True)
class Feed:
    """What an input of a session wants: its name, its dimensions (a name or None where free), and onnxruntime's type name."""

    name: str
    shape: tuple[int | str | None, ...]
    type: str


class Session:
    """A model loaded into onnxruntime on the CPU.

    `model` is a path, or the bytes of a model; `external` is the folder in which the bytes' external data lies. Raises
    ModelError with onnxruntime's reason where it refuses the model.
    """

    def __init__(self, model: bytes | Path, *, external: Path | None = None, threads: int = 1) -> None:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        options.intra_op_num_threads = threads
        options.inter_op_num_threads = 1
        options.log_severity_level = 4
        options.add_session_config_entry("session.disable_prepacking", "1")
        if external is not None and isinstance(model, bytes):
            options.add_session_config_entry("session.model_external_initializers_file_folder_path", str(external))
        source = model if isinstance(model, bytes) else str(model)
        with _refusals("load"):
            self._session = onnxruntime.InferenceSession(source, options, providers=["CPUExecutionProvider"])

    @property
    def inputs(self) -> list[Feed]:
        """The inputs that must be fed, in order."""
        return [Feed(i.name, tuple(i.shape), i.type) for i in self._session.get_inputs()]

    @property
    def outputs(self) -> list[str]:
        """The names of the outputs, in order."""
        return [o.name for o in self._session.get_outputs()]

    def run(self, feeds: Mapping[str, Any], outputs: Sequence[str] | None = None) -> dict[str, Any]:
        """Run once; return the values of `outputs` (all of them by default) by name."""
        names = list(outputs) if outputs is not None else self.outputs
        with _refusals("run"):
            values = self._session.run(names, {name: _fed(value) for name, value in feeds.items()})
        return dict(zip(names, values, strict=True))

    def run_in_place(self, inputs: Mapping[str, Binding], outputs: Mapping[str, Binding]) -> None:
        """Run once on tensors at given addresses: inputs are read, and outputs written, where the bindings say."""
        binding = self._session.io_binding()
        for name, b in inputs.items():
            binding.bind_input(name, "cpu", 0, b.element_type, b.shape, b.address)
        for name, b in outputs.items():
            binding.bind_output(name, "cpu", 0, b.element_type, b.shape, b.address)
        with _refusals("run"):
            self._session.run_with_iobinding(binding)


class _refusals:  # noqa: N801 - reads as a statement: with _refusals("load")
    """Turns onnxruntime's exceptions, which share no base class, into a ModelError with one line."""

    def __init__(self, verb: str) -> None:
        self._verb = verb

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if error is None or not isinstance(error, Exception):
            return
        reason = " ".join(str(error).split())
        raise ModelError(f"onnxruntime cannot {self._verb} the model: {reason}") from error


def _fed(value: Any) -> Any:
    """Return `value` as onnxruntime takes it: element types that numpy lacks (bfloat16, float8, int4) go in as an OrtValue."""
    if isinstance(value, np.ndarray) and value.dtype.kind == "V":
        import onnxruntime
        from onnx import helper

        element_type = helper.np_dtype_to_tensor_dtype(value.dtype)
        return onnxruntime.OrtValue.ortvalue_from_numpy_with_onnx_type(value, element_type)
    return value
