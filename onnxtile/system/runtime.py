"""Sessions and runs of onnxruntime, also with tensors at given addresses. No other module imports onnxruntime.

Everything here runs with graph optimisation and prepacking off and a fixed number of threads, so that a model computes
exactly the kernels it is written with, and two runs of the same kernels give the same bits.
"""

from __future__ import annotations

import ctypes
import math
import mmap
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cache, cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from onnxtile.system.dataclass import dataclass
from onnxtile.system.errors import ModelError, NoKernel, OnnxtileError
from onnxtile.system.interpreter import is_silenced
from onnxtile.system.long_work import Watch, seconds_of_a_run, too_much_memory

Array = np.ndarray[Any, np.dtype[Any]]

_WITHOUT_NUMPY = {
    "tensor(bfloat16)": "bfloat16",
    "tensor(float8e4m3fn)": "float8_e4m3fn",
    "tensor(float8e4m3fnuz)": "float8_e4m3fnuz",
    "tensor(float8e5m2)": "float8_e5m2",
    "tensor(float8e5m2fnuz)": "float8_e5m2fnuz",
    "tensor(int4)": "int4",
    "tensor(uint4)": "uint4",
    "tensor(int2)": "int2",
    "tensor(uint2)": "uint2",
}
"""Element types that numpy lacks, by onnxruntime's names, and their names in ml_dtypes."""
_BITS = {"int4": 4, "uint4": 4, "int2": 2, "uint2": 2}
"""Bits of an element where several share a byte."""


_FATAL = 4
"""The only severity that a session may print: each error comes as an exception, and some are looked for on purpose."""


_SILENT = "ORT_DISABLE_TELEMETRY"
"""Environment variable of onnxruntime."""


@cache
def _library() -> Any:
    """Return onnxruntime, told to send nothing over the network, and in a command to print nothing on stderr outside of sessions either.

    From version 1.29 on it reports names and digests of models to its maker, unless the variable is set before it is imported
    (https://github.com/microsoft/onnxruntime/pull/27379); whoever sets the variable decides.
    """
    os.environ.setdefault(_SILENT, "1")
    import onnxruntime

    if is_silenced():
        onnxruntime.set_default_logger_severity(_FATAL)
    if os.environ[_SILENT] == "1":
        onnxruntime.disable_telemetry_events()  # for Windows, and where somebody has imported it before
    return onnxruntime


@cache
def _cpu() -> Any:
    """Return the device of all bindings."""
    state = _library().capi.onnxruntime_pybind11_state
    return state.OrtDevice(state.OrtDevice.cpu(), state.OrtDevice.default_memory(), 0)


class Binding(NamedTuple):
    """A tensor in memory that somebody else owns: the address of its first byte, its shape, and its ONNX element type."""

    address: int
    shape: tuple[int, ...]
    element_type: int


@dataclass(frozen=True)
class Feed:
    """An input or output of a session: its name, its dimensions (a name or None where free), and onnxruntime's type name."""

    name: str
    shape: tuple[int | str | None, ...]
    type: str


class Session:
    """A model loaded into onnxruntime on the CPU.

    `model` is a path, or the bytes of a model; `external` is the folder in which the bytes' external data lies. Raises
    ModelError with onnxruntime's reason where it refuses the model. Without `pooled`, each result has memory of its own: a pool of at least
    a megabyte is held by any value in it. `weights` are constants with their names, which are read where they are, or in copies where that
    is not at an element: the model refers to a file in `external` for them.
    """

    def __init__(
        self,
        model: bytes | Path,
        *,
        external: Path | None = None,
        threads: int = 1,
        pooled: bool = True,
        weights: Iterable[tuple[str, Array]] = (),
    ) -> None:
        onnxruntime = _library()
        options = onnxruntime.SessionOptions()
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        options.intra_op_num_threads = threads
        options.inter_op_num_threads = 1
        options.log_severity_level = _FATAL
        options.add_session_config_entry("session.disable_prepacking", "1")
        # A pattern places all weights in one block, each by a search among all before it: 28,000 small ones take 70 s.
        options.enable_mem_pattern = False
        options.enable_cpu_mem_arena = pooled
        if external is not None and isinstance(model, bytes):
            options.add_session_config_entry("session.model_external_initializers_file_folder_path", str(external))
        self._weights = dict(map(_boxed_weight, weights))  # a loop would hold each array until the next is read
        for name, box in self._weights.items():
            options.add_initializer(name, box)
        source = model if isinstance(model, bytes) else str(model)
        self._iterates = _iterates(model)
        with _refusals("load"):
            # Before it falls back to the same provider, onnxruntime prints lines to stdout, where `--json -` writes its document.
            self._session = onnxruntime.InferenceSession(
                source, options, providers=["CPUExecutionProvider"], enable_fallback=0
            )

    @property
    def inputs(self) -> list[Feed]:
        """The inputs that must be fed, in order."""
        return [Feed(i.name, tuple(i.shape), i.type) for i in self._session.get_inputs()]

    @property
    def outputs(self) -> list[str]:
        """The names of the outputs, in order."""
        return [o.name for o in self._session.get_outputs()]

    @cached_property
    def results(self) -> list[Feed]:
        """Names, dimensions and types of the outputs, in order, as onnxruntime infers them."""
        return [Feed(o.name, tuple(o.shape), o.type) for o in self._session.get_outputs()]

    def run(self, feeds: Mapping[str, Any], outputs: Sequence[str] | None = None) -> dict[str, Any]:
        """Run once; return the values of `outputs` (all of them by default) by name, each in its own element type.

        Raises ModelError with onnxruntime's reason, OverLimit where the run takes more than it may (`onnxtile.system.long_work`).
        """
        names = list(outputs) if outputs is not None else self.outputs
        types = {o.name: o.type for o in self._session.get_outputs()}
        given = {i.name: i.type for i in self._session.get_inputs()}
        how = _run_options()
        with self._watch(how), _refusals("run"):
            fed = {name: _fed(value) for name, value in feeds.items()}
            # What is no tensor has no numpy form as an OrtValue, and some tensors have one only so.
            bare = [name for name in names if types.get(name) in _WITHOUT_NUMPY]
            if bare and all(types.get(name, "tensor(").startswith("tensor(") for name in names):
                bare = names
            plain = [name for name in names if name not in bare]
            values = dict(zip(plain, self._session.run(plain, fed, how), strict=True)) if plain or not bare else {}
            if bare:
                held = {name: boxed(value, given.get(name, "")) for name, value in fed.items()}
                boxes = self._session.run_with_ort_values(bare, held, how)
                values |= {name: unboxed(box, types[name]) for name, box in zip(bare, boxes, strict=True)}
        return {name: values[name] for name in names}

    def run_in_place(self, inputs: Mapping[str, Binding], outputs: Mapping[str, Binding]) -> None:
        """Run once on tensors at given addresses: inputs are read, and outputs written, where the bindings say."""
        how = self._options
        with self._watch(how), _refusals("run"):
            # Its class in Python takes longer to bind the names than a small kernel runs.
            session, cpu = self._session._sess, _cpu()
            binding = _library().capi.onnxruntime_pybind11_state.SessionIOBinding(session)
            for name, (address, shape, element_type) in inputs.items():
                binding.bind_input(name, cpu, element_type, shape, address)
            for name, (address, shape, element_type) in outputs.items():
                binding.bind_output(name, cpu, element_type, shape, address)
            session.run_with_iobinding(binding, how)

    def run_on(self, inputs: Mapping[str, Any], outputs: Mapping[str, Binding | None]) -> dict[str, Any]:
        """Run once; return a value for each of `outputs`: its binding, or a value of onnxruntime's own where it has None.

        Such values are inputs of further runs, here or of other sessions, beside bindings and what `boxed` returns.
        """
        how = _run_options()
        bound = {
            name: binding_or_array
            for name, binding_or_array in {**inputs, **outputs}.items()
            if isinstance(binding_or_array, Binding)
        }
        with self._watch(how), _refusals("run"):
            if not bound and len(inputs) <= _FEW:
                return dict(zip(outputs, self._session.run_with_ort_values(list(outputs), inputs, how), strict=True))
            binding = self._session.io_binding()
            for name, given in inputs.items():
                if isinstance(given, Binding):
                    binding.bind_input(name, "cpu", 0, given.element_type, given.shape, given.address)
                else:
                    binding.bind_ortvalue_input(name, given)
            for name, b in outputs.items():
                if b is None:
                    binding.bind_output(name, "cpu")
                else:
                    binding.bind_output(name, "cpu", 0, b.element_type, b.shape, b.address)
            self._session.run_with_iobinding(binding, how)
            if len(bound) == len(inputs) + len(outputs):
                return bound
            # What a binding gives holds the binding, which holds the session.
            types = {o.name: o.type for o in self._session.get_outputs()}
            results = zip(outputs, binding.get_outputs(), strict=True)
            return {name: bound.get(name) or boxed(unboxed(box, types[name])) for name, box in results}

    @cached_property
    def _options(self) -> Any:
        """The options of runs until one of them is stopped."""
        return _run_options()

    def _watch(self, how: Any) -> Watch:
        """Return the watch that stops the run with the options `how` when its time is over."""

        def stop() -> None:
            vars(self).pop("_options", None)
            how.terminate = True

        return Watch(seconds_of_a_run(iterates=self._iterates), stop)


def _run_options() -> Any:
    how = _library().RunOptions()
    # Without this entry onnxruntime's Python package looks for it and catches a C++ exception, which takes longer than a small kernel.
    how.add_run_config_entry("gpu_graph_id", "-1")
    return how


def _iterates(model: bytes | Path) -> bool:
    """Return whether a node of `model`, in whatever graph, is a Loop or a Scan: the operator's name as the file has it."""
    if isinstance(model, bytes):
        return any(mark in model for mark in _ITERATING)
    if not model.is_file() or not model.stat().st_size:
        return False
    with model.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        return any(data.find(mark) >= 0 for mark in _ITERATING)


def as_text(strings: Array) -> Array:
    """Return an array of strings as an array of Python's, of any shape.

    onnxruntime reads NumPy's strings of a fixed width as if each ended in a zero, beyond the array where none does, and takes the
    spelling of a Python bytes object for its content. Raises ModelError for bytes that are not UTF-8.
    """
    try:
        texts = [
            element.decode() if isinstance(element, bytes) else str(element) for element in strings.ravel().tolist()
        ]
    except UnicodeDecodeError as error:
        raise ModelError(f"a string tensor holds bytes that are not UTF-8: {error}") from error
    array = np.empty(len(texts), object)
    array[:] = texts
    return array.reshape(strings.shape)


def contrib_schemas(op: str, domain: str) -> list[Any]:
    """Return onnxruntime's schemas of one of its own operators, one for each version; none where it has no such operator."""
    return _schemas().get((domain, op), [])


@cache
def _schemas() -> dict[tuple[str, str], list[Any]]:
    schemas: dict[tuple[str, str], list[Any]] = {}
    for schema in _library().capi.onnxruntime_pybind11_state.get_all_operator_schema():
        schemas.setdefault((schema.domain, schema.name), []).append(schema)
    return schemas


def inferred_results(model: bytes) -> list[Feed]:
    """Return name, dimensions and type of each output of `model` as onnxruntime infers them when it loads it; nothing is run.

    The shape () means a scalar, or that the rank is not known. Raises ModelError where onnxruntime refuses the model.
    """
    return Session(model).results


_FEW = 1_000
"""Inputs whose names onnxruntime's Python package compares with each other, at most: its time grows with their square."""
_OTHER_SHAPE = (
    r"\((?P<operator>\w+)\) has shape \{(?P<given>[\d,]*)\} "
    r"but the computed output shape for this run is \{(?P<computed>[\d,]*)\}"
)
"""Message of onnxruntime for an output that does not fit its memory."""


_ITERATING = (b"\x22\x04Loop", b"\x22\x04Scan")
"""The field `op_type` of a node in a file."""
_NO_KERNEL = (
    r"NOT_IMPLEMENTED : (?:Could not find an implementation|Failed to find kernel) for (?P<operator>[\w.:]+)"
    # Of a run on given addresses, the code of the error is lost.
    r"|(?:NOT_IMPLEMENTED : |Error in execution: (?=.*\bnot implemented\b))"
    r"Non-zero status code returned while running (?P<unfinished>\w+) node"
    # A cast that onnxruntime inserts before an operator without a kernel for 16-bit floats, which has none for 32 bits either.
    r"|input parameter \(InsertedPrecisionFreeCast_[^)]*\) of operator \((?P<cast>\w+)\)"
    # An operator of a domain that onnxruntime does not know.
    r"|Fatal error: (?P<domain>[\w.]+):(?P<foreign>\w+)\([-\d]+\) is not a registered function"
    r"|Opset (?P<opset>\d+) is under development .* support for domain ai\.onnx is till opset (?P<last>\d+)"
)
"""Message of onnxruntime for an operator, its element types, or a version of the operators that its processor cannot run."""
_PLACE = r"\[ONNXRuntimeError\] : \d+ : \w+ : |/\S*onnxruntime/core/\S+:\d+ [^(]*\(.*?\) "
"""The parts of a message of onnxruntime that say where in its own code it was written."""
_NO_MEMORY = "Failed to allocate memory|bad_alloc"
"""Message of onnxruntime for a failed allocation."""


def _lacking(match: re.Match[str], reason: str) -> str:
    """Return what onnxruntime's CPU lacks, by its `reason`, in which _NO_KERNEL has this `match`."""
    if match["opset"] is not None:
        return f"has no kernels for opset {match['opset']}, only up to {match['last']}"
    if match["foreign"] is not None:
        return f"has no kernel for {match['domain']}.{match['foreign']}"
    if match["unfinished"] is not None:
        return f"does not implement this {match['unfinished']}: {reason}"
    return f"has no kernel for {match['operator'] or match['cast']}: {reason}"


class _refusals:  # noqa: N801 - reads as a statement: with _refusals("load")
    """Turns onnxruntime's exceptions, which share no base class, into a ModelError with one line."""

    def __init__(self, verb: str) -> None:
        self._verb = verb

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if not isinstance(error, Exception) or isinstance(error, OnnxtileError):
            return
        reason = " ".join(str(error).split())
        if re.search(_NO_MEMORY, reason):
            raise too_much_memory() from error
        missing = re.search(_NO_KERNEL, reason)
        if missing is not None:
            hint = "add --no-verify to go on without a run"
            raise NoKernel(f"onnxruntime's CPU {_lacking(missing, reason)}", hint=hint) from error
        match = re.search(_OTHER_SHAPE, reason)
        if match is None:
            raise ModelError(f"onnxruntime cannot {self._verb} the model: {re.sub(_PLACE, '', reason)}") from error
        raise ModelError(
            f"the operator {match['operator']} has a result of shape {{{match['computed']}}} with these inputs, "
            f"and {{{match['given']}}} in the model",
            hint="the numbers in an input decide it: give inputs that the model is made for, with --inputs FILE.npz",
        ) from error


def aligned(array: Array) -> Array:
    """Return `array`, or a copy that starts at a multiple of 64 bytes, as the initializers of a session do: some kernels round by that."""
    if array.ctypes.data % 64 == 0 or array.dtype.hasobject:
        return array
    memory = np.empty(array.nbytes + 63, np.uint8)
    start = -memory.ctypes.data % 64
    copy = memory[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    copy[...] = array
    return copy


def _fed(value: Any) -> Any:
    """Return `value` as onnxruntime takes it: element types that numpy lacks (bfloat16, float8, int4, int2) go in as an OrtValue."""
    if isinstance(value, np.ndarray) and value.dtype.kind in "OSU":
        return as_text(value)
    # numpy's own types are told first, since a name takes it longer to spell than a small tensor takes to run.
    if not isinstance(value, np.ndarray) or value.dtype.isbuiltin == 1:
        return value
    if value.dtype.name not in _WITHOUT_NUMPY.values():
        return value
    from onnx import helper

    held = _packed(value) if value.dtype.name in _BITS else value
    element_type = helper.np_dtype_to_tensor_dtype(value.dtype)
    return _library().OrtValue.ortvalue_from_numpy_with_onnx_type(held, element_type)


def boxed(value: Any, type_name: str = "") -> Any:
    """Return an array, a list of arrays whose `type_name` onnxruntime knows, or what `_fed` returns, as a value of onnxruntime's own."""
    held = _library().OrtValue
    fed = _fed(value)
    if isinstance(fed, held):
        return fed
    if isinstance(fed, list) or fed.dtype.kind == "O":
        return _boxed_constant(fed, type_name)
    return held.ortvalue_from_numpy(np.asarray(fed, order="C"))


def _boxed_weight(weight: tuple[str, Array]) -> tuple[str, Any]:
    name, array = weight
    return name, boxed(array if array.flags.aligned else aligned(array))


def _boxed_constant(value: Any, type_name: str) -> Any:
    """Return strings, or the list of a sequence, as a value of onnxruntime's own: its Python package makes one only by a run of a model."""
    from onnx import TensorProto, numpy_helper, parser

    arrays = value if isinstance(value, list) else [value]
    names = [f"i{number}" for number in range(len(arrays))]
    element = type_name.removeprefix("seq(tensor(").rstrip(")")
    boxed_type, operator = (
        (f"seq({element}[])", "SequenceConstruct") if isinstance(value, list) else ("string[]", "Identity")
    )
    if not arrays:
        operator = f"SequenceEmpty <dtype = {TensorProto.DataType.Value(element.upper())}>"
    head = '<ir_version: 8, opset_import: ["" : 14]>'
    model = parser.parse_model(f"{head} constant () => ({boxed_type} o) {{ o = {operator} ({', '.join(names)}) }}")
    for name, element_array in zip(names, arrays, strict=True):
        text = element_array.dtype.kind in "OSU"
        model.graph.initializer.append(numpy_helper.from_array(as_text(element_array) if text else element_array, name))
    return Session(model.SerializeToString()).run_on({}, {"o": None})["o"]


def unboxed(box: Any, type_name: str) -> Any:
    """Return a copy of a value of onnxruntime's own, whose type it calls `type_name`."""
    if type_name not in _WITHOUT_NUMPY:
        held = box.numpy()
        # The array is a view, and a value that a binding gives does not outlive the binding.
        return held.copy() if isinstance(held, np.ndarray) else held
    import ml_dtypes

    dtype = np.dtype(getattr(ml_dtypes, _WITHOUT_NUMPY[type_name]))
    shape = tuple(box.shape())
    data = np.frombuffer(bytearray(ctypes.string_at(box.data_ptr(), box.tensor_size_in_bytes())), np.uint8)
    return _unpacked(data, shape, dtype) if dtype.name in _BITS else data.view(dtype).reshape(shape)


def _packed(value: Array) -> Array:
    """Return an array of the shape of `value` whose first bytes hold its elements, several to a byte, the lowest bits first."""
    bits = _BITS[value.dtype.name]
    each = 8 // bits
    parts = value.astype(np.int8).ravel().view(np.uint8) & (2**bits - 1)
    rows = np.append(parts, np.zeros(-parts.size % each, np.uint8)).reshape(-1, each)
    held = np.zeros(parts.size, np.uint8)
    held[: len(rows)] = np.bitwise_or.reduce(rows << _shifts(bits), axis=1)
    return held.view(value.dtype).reshape(value.shape)


def _unpacked(held: Array, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    bits = _BITS[dtype.name]
    parts = (held[:, None] >> _shifts(bits) & (2**bits - 1)).ravel()[: math.prod(shape)].astype(np.int8)
    sign = 2 ** (bits - 1)
    elements: Array = parts if dtype.name.startswith("u") else (parts ^ sign) - sign
    return elements.astype(dtype).reshape(shape)


def _shifts(bits: int) -> Array:
    return np.arange(0, 8, bits, dtype=np.uint8)
