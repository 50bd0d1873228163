"""The table of programs in C: models for microcontrollers by onnxtile and by others, on an emulated Cortex-M7.

    python -m tests.bench.measure firmware --folder FOLDER [--names TEXT ...] [--tools NAME ...] [--docs]

Each result is kept in the folder, so that a table is made in several runs. `firmware_target.py` says what the figures are. All tools get
the same inputs and outputs in the same types: those of quantised models are integers.
"""

from __future__ import annotations

import json
import logging
import os
import re
import shutil
import subprocess
import sys
from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime

from models.make_quantised import quantise
from tests.bench.firmware_models import MODELS
from tests.bench.firmware_target import CannotRun, Figures, Port, Program, measured
from tests.bench.tables import Rows, Table

FORM = "qdq-per-channel"


# The models: float, and in 8 bits with inputs and outputs in 8 bits.


@dataclass(frozen=True)
class Subject:
    """A model in one form, with inputs, and the outputs of onnxruntime."""

    name: str
    form: str
    file: Path
    inputs: Mapping[str, np.ndarray]
    outputs: Mapping[str, np.ndarray]

    @property
    def title(self) -> str:
        """The file name without its ending."""
        return self.file.stem

    def ports(self, kind: str) -> list[Port]:
        """Return the inputs or outputs, in buffers of the caller."""
        arrays = self.inputs if kind == "inputs" else self.outputs
        return [Port(name, array.nbytes) for name, array in arrays.items()]


def subject(name: str, form: str, folder: Path) -> Subject:
    """Return the model `name` of MODELS, as float or int8; its file is in `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    maker = MODELS[name]
    plain, file = folder / f"{maker.__name__}.onnx", folder / f"{maker.__name__}_{form}.onnx"
    if not file.exists():
        made = maker()
        if made is None:
            raise CannotRun("its package is not installed")
        onnx.save(made, plain)
        if form == "int8":
            quantise(plain, FORM, file)
            onnx.save(integer_ports(onnx.load(file)), file)
        else:
            shutil.copy(plain, file)
    return replace(of_file(file), name=name, form=form)


def of_file(file: Path) -> Subject:
    """Return the model of a file, with random inputs."""
    inputs = _inputs(_session(file))
    return Subject(file.stem, "", file, inputs, _outputs(file, inputs))


def _session(file: Path) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    return onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])


def _outputs(file: Path, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    session = _session(file)
    results = session.run(None, dict(inputs))
    return {one.name: result for one, result in zip(session.get_outputs(), results, strict=True)}


def integer_ports(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return `model` without the nodes that quantise its inputs, and those that make floats of its outputs."""
    graph = model.graph
    held = {one.name: one for one in graph.initializer}
    made = {name: node for node in graph.node for name in node.output}
    for info in graph.input:
        readers = [node for node in graph.node if info.name in node.input]
        if readers and all(node.op_type == "QuantizeLinear" for node in readers):
            info.type.tensor_type.elem_type = held[readers[0].input[2]].data_type
            for node in readers:
                graph.node.remove(node)
                _rename(graph, node.output[0], info.name)
    for info in graph.output:
        last = made.get(info.name)
        if last is not None and last.op_type == "DequantizeLinear" and last.input[0] in made:
            info.type.tensor_type.elem_type = held[last.input[2]].data_type
            graph.node.remove(last)
            _rename(graph, last.input[0], info.name)
    return model


def _rename(graph: onnx.GraphProto, old: str, new: str) -> None:
    for node in graph.node:
        for values in (node.input, node.output):
            values[:] = [new if value == old else value for value in values]


def _inputs(session: onnxruntime.InferenceSession) -> dict[str, np.ndarray]:
    random = np.random.default_rng(0)
    found = {}
    for one in session.get_inputs():
        shape = [int(size) for size in one.shape]
        if one.type == "tensor(float)":
            is_state = "state" in one.name or one.name.startswith(("keys", "values"))
            found[one.name] = np.zeros(shape, np.float32) if is_state else random.random(shape, np.float32)
        elif one.type == "tensor(int64)":
            found[one.name] = np.full(shape, 16000 if one.name == "sr" else 3 if one.name == "token" else 0, np.int64)
        else:
            dtype = np.int8 if one.type == "tensor(int8)" else np.uint8
            found[one.name] = random.integers(0, 127, shape).astype(dtype)
    return found


# The tools.


@dataclass(frozen=True)
class Row:
    """What a tool did with a model: figures, and how far outputs are from those of onnxruntime; or the reason why not."""

    model: str
    form: str
    tool: str
    figures: Figures | None = None
    equal: str = ""
    reason: str = ""
    asked: int | None = None
    arena: int | None = None


_COMMAND = (sys.executable, "-m", "onnxtile")
_PLACED = ("--io", "overwrite", "--state", "found", "--alignment", "16")


def ours(given: Subject, folder: Path, asked: int | None, extra: str = "0%") -> Row:
    """Return the row of onnxtile: fitted into `asked` bytes where these are given, then planned and written."""
    file = given.file
    if asked is not None:
        file = folder / "fitted.onnx"
        budget = ["--capacity", str(asked), "--budget", extra]
        # The run below compares.
        _run([*_COMMAND, "fit", str(given.file), *budget, "-o", str(file), "--no-verify", "-q"])
    program, plan = program_of(given, folder, ("plan", file, *_PLACED, "-o", folder / "planned.onnx"))
    figures, output = measured(program, given.inputs, folder)
    equal = compared(given, output, program.outputs)
    if "step" in equal:  # the floats between quantised tensors round otherwise than operators on integers
        integers = folder / "integers.onnx"
        _run([*_COMMAND, "fuse", str(given.file), "--lower", "ort", "-o", str(integers), "--no-verify", "-q"])
        by_integers = compared(replace(given, outputs=_outputs(integers, given.inputs)), output, program.outputs)
        equal = f"{by_integers} by integers, {equal} by floats"
    row = Row(given.name, given.form, "onnxtile", figures, equal)
    return replace(row, asked=asked, arena=sum(arena["size"] for arena in plan["arenas"]))


def program_of(given: Subject, folder: Path, words: Sequence[object]) -> tuple[Program, dict[str, Any]]:
    """Return the program in C that a command writes, with the inputs and outputs of `given`, and what it reports. Raises CannotRun."""
    told = folder / "told.json"
    _run([*_COMMAND, *map(str, words), "--emit", str(folder / "net.c"), "--force", "--json", str(told), "-q"])
    header = (folder / "net.h").read_text()
    signature = re.search(r"^void net_run\((.*)\);", header, re.MULTILINE)
    assert signature is not None
    taken = [] if signature[1] == "void" else signature[1].split(", ")
    inputs, outputs = (
        [_own_port(port, header, kind) for port in given.ports(f"{kind}s")] for kind in ("input", "output")
    )
    reset = "net_reset" in header
    states = {port.name for port in inputs if port.address is None} if reset else set()
    inputs = [port for port in inputs if port.name not in states]
    arguments = ", ".join(f"(const void *)&{{{port.name}}}" for port in (*inputs, *outputs) if port.address is None)
    assert len(taken) == arguments.count("(const void *)"), signature[1]
    program = Program([folder / "net.c"], [], f"net_run({arguments});", inputs, outputs, '#include "net.h"\n',
                      "net_reset();" if reset else "")  # fmt: skip
    return program, json.loads(told.read_text())


def _own_port(port: Port, header: str, kind: str) -> Port:
    """Return `port` at the address that an accessor of the program gives; as it is where there is none."""
    found = re.search(rf"^/\* {kind} {re.escape(port.name)}: .*\*/\n.*?(net_{kind}_\w+)\(void\);", header, re.MULTILINE)
    return port if found is None else replace(port, address=f"{found[1]}()")


def emx(given: Subject, folder: Path) -> Row:
    """Return the row of emx-onnx-cgen alone, with its own choice of memory."""
    command = [
        Path(sys.executable).parent / "emx-onnx-cgen",
        "compile",
        given.file,
        folder / "model.c",
        "--model-name",
        "model",
    ]
    _run([*map(str, command), "--large-weight-threshold", "0"])
    inputs, outputs = given.ports("inputs"), given.ports("outputs")
    arguments = ", ".join(f"{{{port.name}}}" for port in (*inputs, *outputs))
    program = Program([folder / "model.c"], [], f"model({arguments});", inputs, outputs, "extern void model();")
    figures, output = measured(program, given.inputs, folder)
    return Row(given.name, given.form, "emx-onnx-cgen", figures, compared(given, output, outputs))


def _run(
    command: Sequence[str],
    folder: Path | None = None,
    variables: Mapping[str, str] | None = None,
    seconds: float | None = None,
) -> None:
    try:
        done = subprocess.run(
            command, cwd=folder, env=variables, timeout=seconds, capture_output=True, text=True, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise CannotRun(f"it takes more than {seconds} s") from error
    if done.returncode:
        lines = [line for line in (done.stderr or done.stdout).splitlines() if line.strip()]
        raise CannotRun(lines[-1] if lines else f"it ended with {done.returncode}")


def compared(given: Subject, output: bytes, ports: Sequence[Port]) -> str:
    """Return in words how far `output` is from the outputs of onnxruntime."""
    at, worst, steps = 0, 0.0, 0
    for port in ports:
        expected = given.outputs[port.name]
        got = np.frombuffer(output[at : at + port.size], expected.dtype).reshape(expected.shape)
        at += port.size
        off = float(np.abs(got.astype(np.float64) - expected).max(initial=0))
        if expected.dtype.kind == "f":
            worst = max(worst, off / max(float(np.abs(expected).max(initial=0)), 1e-30))
        else:
            steps = max(steps, int(off))
    if not worst and not steps:
        return "equal"
    return ", ".join(
        [*([f"{worst:.1g}"] if worst else []), *([f"{steps} steps" if steps > 1 else "1 step"] if steps else [])]
    )


def tflite_micro(given: Subject, folder: Path) -> Row:
    """Return the row of TensorFlow Lite Micro: the arena that it uses here, by its own account; onnx2tf converts and quantises.

    It is a library for this machine, so figures of the Cortex-M7 are missing: code, stack, instructions.
    """
    original = given.file.with_name(given.file.name.replace("_int8", "_float"))
    plain = folder / "model.onnx"
    shutil.copy(original, plain)  # onnx2tf writes over its input
    command = [os.environ.get("ONNX2TF", "onnx2tf"), "-i", str(plain), "-o", str(folder), "-n", "-v", "error"]
    arrays = {name: array for name, array in subject(given.name, "float", original.parent).inputs.items()}
    if given.form == "int8":
        command.append("-oiqt")
        for number, (name, array) in enumerate(arrays.items()):
            samples = np.random.default_rng(0).random((4, *_last_channels(array).shape[1:]), np.float32)
            np.save(folder / f"samples_{number}.npy", samples)
            command += ["-cind", name, str(folder / f"samples_{number}.npy"), "0", "1"]
    pictures = np.random.default_rng(0).random((20, 128, 128, 3), np.float32)
    np.save(folder / "calibration_image_sample_data_20x128x128x3_float32.npy", pictures)  # else it is fetched
    _run(command, folder)
    kind = "full_integer_quant" if given.form == "int8" else "float32"
    files = list(folder.glob(f"*_{kind}.tflite"))
    if not files:
        raise CannotRun(f"onnx2tf writes no {kind}")
    np.savez(folder / "inputs.npz", *(_last_channels(array) for array in arrays.values()))
    command = [sys.executable, "-c", _RUN_TFLITE, str(files[0]), str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    found = re.search(r"Arena allocation total (\d+) bytes", done.stdout + done.stderr)
    if found is None:
        lines = [line for line in done.stderr.splitlines() if line.strip()]
        raise CannotRun(
            next(
                (line for line in lines if "registration" in line or "rror" in line), lines[-1] if lines else "it ends"
            )
        )
    figures = Figures(files[0].stat().st_size, int(found[1]), 0)
    equal = (
        "own quantisation"
        if given.form == "int8"
        else compared(given, (folder / "output.bin").read_bytes(), given.ports("outputs"))
    )
    return Row(given.name, given.form, "TFLite Micro", figures, equal)


def _last_channels(array: np.ndarray) -> np.ndarray:
    return np.moveaxis(array, 1, -1) if array.ndim > 2 else array


_RUN_TFLITE = """
import sys
import numpy as np
from tflite_micro.python.tflite_micro import runtime
made = runtime.Interpreter.from_file(sys.argv[1], arena_size=1 << 26)
arrays = list(np.load(sys.argv[2] + "/inputs.npz").values())
for number, array in enumerate(arrays):
    described = made.get_input_details(number)
    made.set_input(np.resize(array, described["shape"]).astype(described["dtype"]), number)
made.invoke()
open(sys.argv[2] + "/output.bin", "wb").write(made.get_output(0).tobytes())
made.print_allocations()
"""


def deeploy(given: Subject, folder: Path) -> Row:
    """Return the row of Deeploy's flow for any processor: weights are variables in RAM, all else is allocated.

    The variable DEEPLOY names a checkout of it, DEEPLOY_PYTHON the interpreter that has its dependencies.
    """
    checkout = Path(os.environ["DEEPLOY"])
    source = folder / "net.c"
    command = [
        os.environ["DEEPLOY_PYTHON"],
        str(Path(__file__).parent / "deeploy_side.py"),
        str(given.file),
        str(source),
    ]
    _run(command, checkout, {**os.environ, "PYTHONPATH": str(checkout)}, 60)
    library = checkout / "TargetLibraries" / "Generic"
    called = set(re.findall(r"\b(\w+)\(", source.read_text()))
    defined = {
        path: set(re.findall(r"^\w+ (\w+)\(", path.read_text(), re.MULTILINE))
        for path in (library / "src").glob("*_*.c")
    }
    sources = [source, *(path for path, names in sorted(defined.items()) if names & called)]
    inputs, outputs = (
        [replace(port, address=f"DeeployNetwork_{kind}_{place}") for place, port in enumerate(given.ports(f"{kind}s"))]
        for kind in ("input", "output")
    )
    declared = [f"extern void *{port.address};" for port in (*inputs, *outputs)]
    declared.append("void net_run(void);\nvoid net_init(void);")
    program = Program(
        sources, [f"-I{library / 'inc'}"], "net_run();", inputs, outputs, "\n".join(declared), "net_init();"
    )
    figures, output = measured(program, given.inputs, folder)
    return Row(given.name, given.form, "Deeploy", figures, compared(given, output, outputs))


OURS = "onnxtile"
TOOLS: dict[str, Callable[[Subject, Path], Row]] = {
    "emx-onnx-cgen": emx,
    "TFLite Micro": tflite_micro,
    "Deeploy": deeploy,
}
KIB = 1024
ASKED = {
    ("visual wake words, MobileNetV1 0.25-96", "float"): (96 * KIB, "0%"),
    ("visual wake words, MobileNetV1 0.25-96", "int8"): (32 * KIB, "0%"),
    ("MobileNetV2 0.35-144", "float"): (192 * KIB, "5%"),
    ("MobileNetV2 0.35-144", "int8"): (64 * KIB, "5%"),
    ("MobileNetV2 1.0-224", "float"): (256 * KIB, "5%"),
    ("MobileNetV2 1.0-224", "int8"): (160 * KIB, "0%"),
    ("MCUNet-like 160", "float"): (256 * KIB, "5%"),
    ("MCUNet-like 160", "int8"): (80 * KIB, "5%"),
}
"""The bytes that fit is asked for, and its budget of multiplications done again; other models are planned as they are."""


def row_of(name: str, form: str, tool: str, folder: Path, only_kept: bool = False) -> Row:
    """Return the row of a tool, as it is kept in `folder`, or measured now; with `only_kept` it says that it was not measured."""
    kept = folder / "rows" / f"{MODELS[name].__name__}_{form}.{tool.replace(' ', '_')}.json"
    if kept.exists():
        found = json.loads(kept.read_text())
        return Row(**{**found, "figures": found["figures"] and Figures(**found["figures"])})
    if only_kept:
        return Row(name, form, tool, reason="not measured")
    asked, extra = ASKED.get((name, form), (None, "0%")) if tool == OURS else (None, "")
    try:
        given = subject(name, form, folder / "models")
        own = folder / kept.stem
        shutil.rmtree(own, ignore_errors=True)
        own.mkdir(parents=True)
        row = ours(given, own, asked, extra) if tool == OURS else TOOLS[tool](given, own)
    except CannotRun as error:
        row = Row(name, form, tool, reason=str(error), asked=asked)
    kept.parent.mkdir(exist_ok=True)
    kept.write_text(json.dumps(asdict(row), indent=1))
    return row


def firmware(given: Namespace) -> Rows:
    """Yield the RAM, flash and instructions of each model in both forms by each tool."""
    logging.disable(logging.WARNING)
    tools = [OURS, *(tool for tool in TOOLS if not given.tools or tool in given.tools)]
    for name in MODELS:
        if given.names and not any(part in name for part in given.names):
            continue
        for form in ("float", "int8"):
            rows = [row_of(name, form, tool, given.folder, given.kept) for tool in tools]
            known = [row.figures.ram for row in rows if row.figures is not None]
            least = min(known) if rows[0].figures is not None else 0
            rams = [_ram(row, least) for row in rows]
            yield name, form, _whole(rows[0].asked), *rams, *map(_flash, rows), *_instructions(rows), rows[0].equal
            for row in rows:
                if row.reason:
                    yield f"{name}, {form}, {row.tool}: {row.reason}"


def _whole(number: int | None) -> str:
    return "" if number is None else f"{number:,}"


def _ram(row: Row, least: int) -> str:
    if row.figures is None:
        return "" if row.reason == "not measured" else "too large" if "malloc" in row.reason else "refused"
    return f"**{row.figures.ram:,}**" if row.figures.ram == least else f"{row.figures.ram:,}"


def _flash(row: Row) -> str:
    return _whole(None if row.figures is None else row.figures.flash)


def _instructions(rows: Sequence[Row]) -> Sequence[str]:
    """Return the instructions of the first in millions, and those of the second as a ratio."""
    first, second = (row.figures and row.figures.instructions for row in (*rows, Row("", "", ""))[:2])
    return (f"{first / 1e6:.2f}" if first else "", f"{second / first:.2f}" if first and second else "")


def _columns(given: Namespace) -> Sequence[str]:
    tools = [OURS, *(tool for tool in TOOLS if not given.tools or tool in given.tools)]
    titles = [f"{kind}, {tool}" for kind in ("RAM", "flash") for tool in tools]
    return ("model", "form", "arena asked", *titles, "million instructions", f"those of {tools[1]} / ours", "outputs")


TABLES = {
    "firmware": Table(
        "RAM, flash and instructions of programs in C on an emulated Cortex-M7, beside other tools",
        _columns,
        firmware,
        words=2,
        models=False,
        options={
            "--folder": {"type": Path, "required": True, "help": "of models and results"},
            "--names": {"nargs": "+", "metavar": "TEXT", "help": "models whose name has one of these"},
            "--kept": {"action": "store_true", "help": "measure nothing: only results in the folder"},
            "--tools": {"nargs": "+", "metavar": "NAME", "choices": TOOLS, "help": "all by default"},
        },
    )
}
