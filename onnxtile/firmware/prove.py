"""The proof of a program in C by its outputs: it is compiled, and run in a process of its own on the inputs of runs of the model.

The arenas and the outputs lie between canaries. The arena begins with a fill pattern, so that a kernel
that reads what nobody wrote is seen.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir

from onnxtile.arena.memory import TensorMemory
from onnxtile.arena.run import PlainRun
from onnxtile.check.ranges import proved_sizes
from onnxtile.firmware.interface import ctype_of
from onnxtile.firmware.islands import is_written_as_constant, on_integers
from onnxtile.firmware.program import CProgram, NodeResult, StreamPort, proving_driver
from onnxtile.firmware.write import CSource, written
from onnxtile.model.feeds import Wanted, domains
from onnxtile.model.submodel import exposing
from onnxtile.model.topology import all_values
from onnxtile.planning.ranges import sizes_of_runs
from onnxtile.planning.result import PlanResult
from onnxtile.report.format import c_texts
from onnxtile.report.formats.to_header import filled
from onnxtile.shapes.opened_calls import Unfolded, fold, written_out
from onnxtile.system.dataclass import dataclass
from onnxtile.system.errors import Mismatch, UsageError
from onnxtile.system.runtime import Array, Session
from onnxtile.verification.values import OutputError, badness, compare_values

_C = c_texts("onnxtile.firmware", "proof.c")
"""Texts in C, by name."""

WARNINGS = ("-std=c99", "-Wall", "-Wextra", "-Werror")
"""The options with which a file has to compile."""
RUNS = 3
"""The runs of a proof, on different inputs."""
REFUSED = "the C compiler refuses the program"
"""What is said of a program that does not compile."""

REPORT = "nothing was written; please report it with the model"
"""What to do about a program that computes something else."""
_LIMIT = "inputs far from the model's own make errors of rounding large: limit random ones by --inputs INPUT=LOW:HIGH; nothing was written"
"""What to do first about floats that are off in a run on random inputs."""
STATE_RUNS = 64
"""The runs, one after the other, of a program that keeps states."""
_OUT_OF_ORDER = 4
"""The exit code of a program that asks for rows of an input twice, or out of order."""
_OUT_OF_RANGE = 5
"""The exit code of a program that refuses its sizes."""
_SECONDS = 600
"""Seconds that a compiler, or a run, may take."""


@dataclass(frozen=True)
class ComparedResults:
    """The results of all nodes in all runs, each on the operands that onnxruntime has there.

    `equal` of `count` are equal, `one_step` are off by one step of quantisation at most, `within` are floats within the tolerance.
    `operators` are those of results that are a step off, `nodes` their nodes. `integers` of them have the bytes of onnxruntime's
    operator on integers: there onnxruntime's floats round otherwise than its integers.
    """

    count: int
    equal: int
    one_step: int
    within: int
    operators: tuple[str, ...]
    nodes: tuple[str, ...] = ()
    integers: int = 0

    @property
    def summary(self) -> str:
        """The counts in words."""
        steps = f"within one step of quantisation ({', '.join(self.operators)})"
        if self.integers:
            share = "all" if self.integers == self.one_step else f"{self.integers:,}"
            steps += f", {share} with the bytes of onnxruntime's operator on integers"
        if self.nodes:
            more = f" and {len(self.nodes) - 1} more" if len(self.nodes) > 1 else ""
            steps += f", made by {self.nodes[0]!r}{more}"
        others = ((self.within, "within the tolerance of floats"), (self.one_step, steps))
        words = [f"{self.equal:,} equal", *(f"{count:,} {how}" for count, how in others if count)]
        return f"of {self.count:,} results on onnxruntime's operands {', '.join(words)}"


@dataclass(frozen=True)
class Proof:
    """The runs of a program in C beside onnxruntime: the compiler, their number, and the worst difference of each output.

    `not_run` is the reason why there was none. `results` says how the results of all nodes compare where outputs are not equal. `rounding`
    is the worst difference on standard normal inputs where errors of rounding grew, so that smaller inputs were taken instead. `compiler`
    is its name, `runs` the number of runs, and `outputs` the differences.
    """

    compiler: str
    runs: int
    outputs: tuple[OutputError, ...]
    not_run: str | None = None
    results: ComparedResults | None = None
    rounding: float = 0.0

    @property
    def equal(self) -> bool:
        """Whether all outputs are equal, or all results are on the same operands."""
        return self.results is not None or all(output.equal for output in self.outputs)

    @property
    def summary(self) -> str:
        """The proof in a few words."""
        if self.not_run is not None:
            return f"the program in C was not run: {self.not_run}"
        worst = max((output.max_abs for output in self.outputs), default=0.0)
        outputs = f"outputs within {worst:.2g}" if worst else "every output equal"
        results = "" if self.results is None else f"; {self.results.summary}"
        grew = f" (inputs from -{_CALM} to {_CALM}: on larger ones, errors of rounding grew to {self.rounding:.2g})"
        beside = f"beside onnxruntime{grew if self.rounding else ''}"
        return f"the program in C ran {self.runs:,} times {beside}: {outputs}{results}"

    def to_dict(self) -> dict[str, Any]:
        """Return the proof, ready for JSON."""
        return {
            **vars(self),
            "outputs": [output.to_dict() for output in self.outputs],
            "results": self.results and vars(self.results),
            "equal": None if self.not_run is not None else self.equal,
            "summary": self.summary,
        }


def not_proved(reason: str) -> Proof:
    """Return that there was no proof, and why."""
    return Proof("", 0, (), reason)


def compiler() -> list[str] | None:
    """Return the command of a C compiler: $CC, cc, or the package ziglang; None where there is none."""
    named = shlex.split(os.environ.get("CC", ""))
    if named and shutil.which(named[0]):
        return named
    if shutil.which("cc"):
        return ["cc"]
    if find_spec("ziglang") is not None:
        import sys

        return [sys.executable, "-m", "ziglang", "cc"]
    return None


@dataclass(frozen=True)
class CheckedRun:
    """The inputs of one run of a model, and its outputs in onnxruntime, by name; over ranges, the `sizes` of the dimensions."""

    inputs: Mapping[str, Array]
    outputs: Mapping[str, Array]
    sizes: Mapping[str, int] = field(default_factory=dict)


def runs_of(opened: Unfolded, plan: PlanResult, wanted: Wanted, count: int) -> Iterator[CheckedRun]:
    """Yield runs of `opened` in onnxruntime, the outputs of states as inputs of the next run. Raises ModelError.

    Over ranges, they are runs at the corners and between them; with states, up to `count` runs that follow each other.
    """
    model, shapes, constants = opened
    plain = PlainRun(model, shapes)
    carried = {state.input: state.output for state in plan.states}
    before: dict[str, Array] = {}
    for number, sizes in enumerate(_sizes_of_runs(opened, plan, count)):
        feeds = wanted.feeds(model, shapes.at(sizes).sizes if sizes else shapes.sizes, 1, seed=number)[0]
        feeds_of_run = {
            value.name or "": value.const_value.numpy()
            for value in model.graph.inputs
            if value.const_value is not None and value not in constants
        }
        feeds_of_run |= {name: np.asarray(array) for name, array in feeds.items()}
        feeds_of_run |= {
            name: before.get(output, np.zeros_like(feeds_of_run[name])) for name, output in carried.items()
        }
        results = plain.run(feeds_of_run)
        before = {name: np.array(_array(value)) for name, value in results.items()}
        yield CheckedRun(feeds_of_run, before, sizes)


def _sizes_of_runs(opened: Unfolded, plan: PlanResult, count: int) -> list[dict[str, int]]:
    """Return the sizes of each run. Dimensions that states have follow each other; others are at corners and between them."""
    if not plan.ranges:
        return [{}] * count
    proved = proved_sizes(plan.ranges)
    if not plan.states:
        return proved
    states = {state.input for state in plan.states}
    formulas = (opened.shapes.formulas(value) or () for value in opened.model.graph.inputs if value.name in states)
    held = {name for sizes in formulas for size in sizes for name in size.symbols}
    following = sizes_of_runs(plan, opened, count)
    free = [
        name for name in plan.ranges if name not in held and all(sizes[name] == proved[0][name] for sizes in following)
    ]
    return [
        {**sizes, **{name: proved[number % len(proved)][name] for name in free}}
        for number, sizes in enumerate(following)
    ]


_CALM = 0.125
"""The largest random number of a float input of a second proof."""
HALF_PRECISION = 2.0**-10
"""The precision of floats by which rounding may be told from an error in the program: errors that are larger get no second proof."""


def calm(opened: Unfolded, wanted: Wanted) -> Wanted | None:
    """Return smaller random inputs than `wanted`; None where the user chose these, or operators bound all of them.

    Standard normal numbers may be far from what a model takes. States then grow from run to run, and errors of rounding with them.
    """
    if wanted.given is not None or wanted.ranges:
        return None
    model, shapes, _ = opened
    types = {value.name or "": value.dtype for value in model.graph.inputs}
    free = [name for name, domain in domains(model, shapes.sizes).items() if not domain.is_bounded]
    floats = [name for name in free if (dtype := types[name]) is not None and dtype.is_floating_point()]
    return Wanted(ranges=dict.fromkeys(floats, (-_CALM, _CALM))) if floats else None


def _array(value: Any) -> Array:
    return value.array() if isinstance(value, TensorMemory) else np.asarray(value)


def main_text(source: CSource, runs: int) -> str:
    """Return a program that runs `source` on a file of inputs."""
    interface, name = source.interface, source.interface.name
    memory, fill, body, checks, arguments = [], [], [], [], []
    for _, variable, bytes_of_arena in interface.arenas:
        size = max(1, bytes_of_arena)
        memory.append(f"ALIGNED(block_{variable}, {size}u);")
        fill.append(f"    memset(block_{variable}, 0xC3, sizeof block_{variable});")
        fill.append(f"    memset(block_{variable} + ZONE, 0xA5, {size}u);")
        fill.append(f"    {variable} = block_{variable} + ZONE;")
        checks.append(f"        if (!zones_intact(block_{variable}, {size}u, {size}u)) return 3;")
    fill += [f"    {name}_reset();"] if interface.resets else []
    fill += ["    if (!give_weights()) return 2;"] if source.weights_file else []
    weights = filled(_C["weights"], name.upper(), title=source.title) if source.weights_file else ""
    for _, in_c in interface.taken_sizes:
        body.append(f"        uint32_t dim_{in_c};")
        body.append(f"        if (!read_number(&dim_{in_c})) return 2;")
        arguments.append(f"dim_{in_c}")
    for kind, ports in (("input", interface.inputs), ("output", interface.outputs)):
        for port, in_c in ports:
            size = max(1, port.tensor.bytes)
            body.append(f"        uint32_t size_{in_c};")
            body.append(f"        if (!read_number(&size_{in_c}) || size_{in_c} > {port.tensor.bytes}u) return 2;")
            if port.is_argument:
                memory.append(f"ALIGNED(block_{in_c}, {size}u);")
                body.append(f"        memset(block_{in_c}, 0xC3, sizeof block_{in_c});")
                checks.append(f"        if (!zones_intact(block_{in_c}, size_{in_c}, {size}u)) return 3;")
                arguments.append(f"({ctype_of(port)} *)(block_{in_c} + ZONE)")
            if kind == "input":
                target = f"block_{in_c} + ZONE" if port.is_argument else f"{name}_input_{in_c}()"
                body.append(f"        if (!read_all({target}, size_{in_c})) return 2;")
    for number, (stream, function) in enumerate(interface.streams):
        memory.append(_rows_function(number, stream, function))
        body.append(f"        uint32_t size_{number};")
        body.append(f"        if (!read_number(&size_{number}) || size_{number} > {stream.tensor.bytes}u) return 2;")
        body.append(f"        if (!read_all(rows_{number}, size_{number})) return 2;")
        body.append(f"        next_{number} = 0;")
    run = f"{name}_run({', '.join(arguments)})"
    body.append(f"        if ({run}) return {_OUT_OF_RANGE};" if interface.sizes else f"        {run};")
    body += checks
    for port, in_c in interface.outputs:
        origin = f"(uint8_t *)({f'block_{in_c} + ZONE' if port.is_argument else f'{name}_output_{in_c}()'})"
        body.append(f"        for (uint32_t row = 0, size = size_{in_c} / {port.rows}u; row < {port.rows}u; ++row)")
        body.append(f"            if (fwrite({origin} + row * {port.pitch}u, 1, size, out) != size) return 2;")
    texts = {key: "\n".join(lines) for key, lines in (("memory", memory), ("fill", fill), ("body", body))}
    texts |= {"check": filled(_C["check"], name), "open": _C["open"]} if source.checks else {"check": "", "open": ""}
    return filled(_C["main"], name.upper(), title=source.title, runs=runs, weights=weights, **texts) + "\n"


def _rows_function(number: int, port: StreamPort, function: str) -> str:
    """Return the function that gives rows of an input from an array, and ends the program where a row comes twice or too early."""
    lines = [
        f"static unsigned char rows_{number}[{port.tensor.bytes}u];",
        f"static size_t next_{number};",
        f"void {function}({ctype_of(port)} *target, size_t first, size_t count) {{",
        f"    if (first < next_{number} || !count || first + count > {port.rows}u) exit({_OUT_OF_ORDER});",
        f"    next_{number} = first + count;",
        f"    for (size_t plane = 0; plane < {port.planes}u; ++plane)",
        f"        memcpy((unsigned char *)target + plane * count * {port.run_bytes}u,",
        f"               rows_{number} + (plane * {port.rows}u + first) * {port.run_bytes}u, count * {port.run_bytes}u);",
        "}",
    ]
    return "\n".join(lines)


@dataclass(frozen=True)
class Tools:
    """The command of a compiler with its options, files for it besides, and the command that runs its program (nothing: it runs itself)."""

    compiler: tuple[str, ...]
    runner: tuple[str, ...] = ()


def output_of(source: CSource, runs: Sequence[CheckedRun], tools: Tools) -> bytes:
    """Compile and run `source`; return the bytes of all outputs of all `runs`.

    Raises UsageError where a tool fails, Mismatch where the program writes outside its memory, or ends early.
    """
    with tempfile.TemporaryDirectory(prefix="onnxtile-") as folder:
        program = compiled_program(source, runs, tools, Path(folder))
        return output_of_run(program, source, runs, tools)


def compared(source: CSource, runs: Sequence[CheckedRun], output: bytes, tools: Tools, coarsest: float = 0.0) -> Proof:
    """Return the proof by the outputs of all runs: integers equal, floats within the tolerance of verify.

    `coarsest` is the precision of the floats of 16 bits that the model computes in, 0 where there are none.
    """
    errors: dict[str, OutputError] = {}
    at = 0
    for run in runs:
        for port, _ in source.interface.outputs:
            expected = np.asarray(run.outputs[port.name])
            got = tensor_of(output[at : at + expected.nbytes], port.tensor.dtype, expected.shape)
            at += expected.nbytes
            error = compare_values(port.name, expected, got, coarsest=coarsest)
            errors[port.name] = max(errors.get(port.name, error), error, key=badness)
    return Proof(" ".join(tools.compiler), len(runs), tuple(errors.values()))


def tensor_of(data: bytes, dtype: int, sizes: tuple[int, ...]) -> Array:
    """Return the elements in `data` as a tensor of the type, by its number in onnx, and of these sizes."""
    return np.frombuffer(data, ir.DataType(dtype).numpy()).reshape(sizes)


def require_proved(proof: Proof, wanted: Wanted) -> None:
    """Raise Mismatch where the program in C does not compute what onnxruntime does on the `wanted` inputs."""
    if not proof.equal:
        worst = max((output for output in proof.outputs if not output.equal), key=badness)
        reason = f": {worst.reason}" if worst.reason else ""
        raise Mismatch(
            f"the program in C does not compute what the model does: {worst.name!r} is off by {worst.max_abs:.3g}{reason}",
            hint=_LIMIT if worst.tolerance and wanted.given is None and not wanted.ranges else REPORT,
        )


def compiled_program(source: CSource, runs: Sequence[CheckedRun], tools: Tools, folder: Path) -> Path:
    """Write `source`, the program that runs it and the inputs of `runs` to `folder`, and compile them. Raises UsageError."""
    files = [str(source.save(folder)), str(folder / "main.c")]
    (folder / "main.c").write_text(main_text(source, len(runs)), "utf-8")
    (folder / "input.bin").write_bytes(b"".join(_input_of(source, run) for run in runs))
    external = [f"-D{variable.upper()}_EXTERN" for _, variable, _ in source.interface.arenas]
    if source.weights_file:
        (folder / f"{source.title}.weights.bin").write_bytes(source.weights_file)
        external += [f'-DWEIGHTS_IN_FLASH="{folder}/{source.title}.weights.bin"'] if tools.runner else []
    if source.transfers:
        files.append(str(folder / "driver.c"))
        Path(files[-1]).write_text(proving_driver(source.title, source.interface.name, source.transfers), "utf-8")
    command = [*tools.compiler, *WARNINGS, "-O2", *external, *files, "-lm", "-o", str(folder / "program")]
    succeed(command, REFUSED)
    return folder / "program"


def _input_of(source: CSource, run: CheckedRun) -> bytes:
    """Return what the program reads for one run: sizes, each input after its bytes, the bytes of each output, and inputs row by row."""
    interface, given, expected = source.interface, run.inputs, run.outputs
    numbers = [run.sizes[size.name] for size, _ in interface.taken_sizes]
    data = b"".join(map(_number, numbers)) + b"".join(_counted(given[port.name]) for port, _ in interface.inputs)
    data += b"".join(_number(np.asarray(expected[port.name]).nbytes) for port, _ in interface.outputs)
    return data + b"".join(_counted(given[stream.name]) for stream, _ in interface.streams)


def _counted(value: Array) -> bytes:
    array = np.asarray(value)
    return _number(array.nbytes) + array.tobytes()


def _number(number: int) -> bytes:
    return number.to_bytes(4, "little")


def output_of_run(program: Path, source: CSource, runs: Sequence[CheckedRun], tools: Tools) -> bytes:
    """Run `program`, which `compiled_program` made, and return the bytes of all outputs of all `runs`."""
    folder = program.parent
    runner = [str(Path(word).resolve()) if Path(word).is_file() else word for word in tools.runner]
    done = command_done([*runner, program.name] if runner else [str(program)], folder)
    if done.returncode == 3:
        raise Mismatch("the program in C writes outside its memory", hint=REPORT)
    if done.returncode == _OUT_OF_ORDER:
        raise Mismatch("the program in C asks for rows of an input twice, or out of order", hint=REPORT)
    if done.returncode == _OUT_OF_RANGE:
        raise Mismatch("the program in C refuses a size in its range", hint=REPORT)
    if done.returncode:
        raise Mismatch(f"the program in C ended with {done.returncode}: {_last(done)}", hint="nothing was written")
    output = (folder / "output.bin").read_bytes() if (folder / "output.bin").exists() else b""
    if len(output) != sum(
        np.asarray(run.outputs[port.name]).nbytes for run in runs for port, _ in source.interface.outputs
    ):
        raise Mismatch(f"the program in C ended early: {_last(done)}", hint="nothing was written")
    return output


def succeed(command: Sequence[str], reason: str) -> subprocess.CompletedProcess[str]:
    """Run `command`, and return how it ended. Raises UsageError with `reason` and what it says where it fails."""
    done = command_done(command, None)
    if done.returncode:
        raise UsageError(
            f"{reason}: {_last(done)}", hint="nothing was written; add --no-verify to write it all the same"
        )
    return done


def command_done(command: Sequence[str], folder: Path | None) -> subprocess.CompletedProcess[str]:
    """Run `command` in `folder`, and return how it ended. Raises UsageError where it cannot be run, or does not end."""
    try:
        return subprocess.run(
            command,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            encoding="utf-8",
            errors="replace",
            timeout=_SECONDS,
            check=False,
        )
    except OSError as error:
        raise UsageError(f"{command[0]} cannot be run: {error.strerror}") from error
    except subprocess.TimeoutExpired as error:
        raise UsageError(f"{command[0]} took more than {_SECONDS} seconds") from error


def _last(done: subprocess.CompletedProcess[str]) -> str:
    """Return the line of an error."""
    lines = [line for line in (done.stderr + done.stdout).splitlines() if line.strip()]
    return next((line for line in lines if "error" in line), lines[-1] if lines else "no message")


# The proof of a program in C by the results of its nodes: for quantised models, and to name the node that is wrong.
#
# Kernels of different machines round sums of floats differently. Before a quantisation an element is one step off then, and the operators
# that follow make more of it, or hide it. So each result is compared where its node has made it, at its planned address. That of
# onnxruntime takes its place then. All nodes compute on onnxruntime's operands, and a tensor that is overwritten too early is seen where it
# is read.


_EQUAL, _STEP, _WITHIN = "equal", "one step", "within"
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
