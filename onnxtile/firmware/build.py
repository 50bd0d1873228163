"""From a planned model to its firmware: the program in C, its proof, the bytes of flash and RAM that it takes, and kernels in place."""

from __future__ import annotations

import re
import shlex
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import field, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir

from onnxtile.declare.values import TargetFigures
from onnxtile.declare.verb import JsonFields
from onnxtile.firmware.kernels import CKernel, CKernels, kernels_in_c, model_of
from onnxtile.firmware.own_kernels import OwnKernels, compiled_objects, read_own_kernels
from onnxtile.firmware.program import (
    WORKSPACE,
    Branch,
    ByteAddress,
    CopyCall,
    CProgram,
    DistinctKernel,
    KernelCall,
    PlainCall,
    ProgramCall,
    RepeatedCalls,
    flat,
)
from onnxtile.firmware.prove import (
    HALF_PRECISION,
    REFUSED,
    REPORT,
    RUNS,
    STATE_RUNS,
    WARNINGS,
    CheckedRun,
    Proof,
    Tools,
    calm,
    command_done,
    compared,
    compared_results,
    compiler,
    not_proved,
    output_of,
    require_proved,
    runs_of,
    succeed,
)
from onnxtile.firmware.steps import program_of
from onnxtile.firmware.write import CSource, written
from onnxtile.model.feeds import ANYTHING, Wanted, sample_feeds
from onnxtile.model.node_kinds import dequantises, quantises
from onnxtile.planning.offsets.problem import align
from onnxtile.planning.result import PlanResult
from onnxtile.report.format import c_texts
from onnxtile.shapes.opened_calls import Unfolded
from onnxtile.system.dataclass import dataclass
from onnxtile.system.errors import Mismatch, UsageError
from onnxtile.system.long_work import Progress, silent
from onnxtile.system.runtime import Array
from onnxtile.verification.rounding import halves
from onnxtile.verification.values import precision_of

_C = c_texts("onnxtile.firmware", "proof.c")
"""Texts in C, by name."""

_NAME = "onnxtile_net"
"""The start of all names until the file has its own."""
OPTIMISED = "-O2"


@dataclass(frozen=True)
class Footprint(JsonFields):
    """The bytes of a program as `compiler` makes it: code, constants, memory, and the deepest stack (None where that is not known).

    The stack is without that of functions of the C library. `constants` has the weights and the tables, `memory` arenas and workspaces.
    `code` has bytes; `stack` too, None where it is not known.
    """

    JSON = "compiler code constants memory stack flash ram"

    compiler: str
    code: int
    constants: int
    memory: int
    stack: int | None

    @property
    def flash(self) -> int:
        """Code and constants."""
        return self.code + self.constants

    @property
    def ram(self) -> int | None:
        """Memory and stack; None where the stack is not known."""
        return None if self.stack is None else self.memory + self.stack


@dataclass(frozen=True)
class Firmware:
    """A program in C, its proof, and its bytes (None where no compiler is).

    `copied` counts by operator the calls that read a copy of an operand, because in place their kernel in C would compute something else.
    `in_floats` are the kernels between a DequantizeLinear and a QuantizeLinear that the plan has as kernels of their own. `source` is the
    text, `proof` its runs beside onnxruntime, `footprint` the bytes.
    """

    source: CSource
    proof: Proof
    footprint: Footprint | None
    copied: Mapping[str, int] = field(default_factory=dict)
    in_floats: int = 0

    def files(self, title: str) -> Mapping[str, bytes]:
        """Return the files of the program by their ending, with names that begin with `title`."""
        named = self.source.named(title)
        files = {".c": named.code.encode(), ".h": named.header.encode()}
        return {**files, ".weights.bin": named.weights_file} if named.weights_file else files

    def to_dict(self) -> dict[str, Any]:
        """Return the figures, ready for JSON."""
        source = self.source
        figures = ("kernels", "functions", "calls", "blocks", "tables", "weights", "workspace", "transfers")
        return {
            **{name: getattr(source, name) for name in figures},
            "arena": sum(size for _, _, size in source.interface.arenas),
            "proof": self.proof.to_dict(),
            "footprint": self.footprint and self.footprint.to_dict(),
            "copied": dict(self.copied),
            "in_floats": self.in_floats,
        }


@dataclass(frozen=True)
class ProgramTarget:
    """The commands of a compiler for a target, and of what runs its programs; an empty one is that of this machine, or nothing.

    `own` has the user's functions for kernels. `weights` says where these are: in the "code", or in a "file" of their own.
    """

    compiler: str = ""
    runner: str = ""
    own: OwnKernels | None = None
    weights: str = "code"

    @classmethod
    def from_figures(cls, figures: TargetFigures) -> ProgramTarget:
        """Return the commands and the functions that a target names. Raises UsageError for a table of functions that is none."""
        table = figures.c_kernels
        kernels = None if table is None else read_own_kernels(table)
        return cls(figures.cc, figures.runner, kernels, figures.weights)

    def tools(self) -> Tools | None:
        """Return the commands; None where there is no compiler. Raises UsageError for one that is not there."""
        if self.compiler.strip():
            return Tools(_words(self.compiler), _words(self.runner) if self.runner.strip() else ())
        command = compiler()
        return None if command is None else Tools(tuple(command))


def _words(command: str) -> tuple[str, ...]:
    """Return the words of `command`, which is not empty, as a shell reads them. Raises UsageError where no such command is here."""
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise UsageError(f"{command!r} is no command: {error}", hint="close the quotes") from error
    if shutil.which(words[0]) is None:
        raise UsageError(f"there is no command {words[0]!r}", hint="install it, or name another")
    return tuple(words)


HERE = ProgramTarget()
"""The C compiler of this machine."""


def build(
    opened: Unfolded,
    plan: PlanResult,
    *,
    wanted: Wanted = ANYTHING,
    verify: bool = True,
    target: ProgramTarget = HERE,
    state_runs: int = STATE_RUNS,
    progress: Progress = silent,
) -> Firmware:
    """Return the firmware of `plan`, a plan of `opened`; with `verify` it is compiled and run beside onnxruntime.

    A program with states has `state_runs` runs, one after the other.

    Raises UsageError that names the node for which no C can be written, or where a tool fails; Mismatch where the program differs.
    """
    progress("writing C")
    program, here = program_of(opened, plan, target.own), HERE.tools()
    copied: Mapping[str, int] = {}
    if here is not None:
        progress("running kernels of C in place")
        program, copied = checked(program, here)
    source = written(program, _NAME, target.weights)
    firmware = Firmware(source, not_proved("verification is off"), None, copied, _in_floats(opened))
    with _with_objects(target.tools(), target.own) as tools:
        if tools is None:
            return replace(firmware, proof=not_proved("no C compiler is here"))
        firmware = replace(firmware, footprint=footprint_of(source, tools, required=verify))
        if not verify:
            return firmware
        if target.compiler and not tools.runner:
            return replace(firmware, proof=not_proved("no runner is given for the target"))
        progress("running C")
        proof = _proof(
            program, source, opened, plan, wanted, max(RUNS, state_runs) if plan.states else RUNS, tools, progress
        )
    require_proved(proof, wanted)
    return replace(firmware, proof=proof)


def _in_floats(opened: Unfolded) -> int:
    """Return how many nodes of the main graph compute on dequantised tensors what is quantised again."""
    return sum(
        not dequantises(node)
        and any(
            value is not None and value not in opened.constants and dequantises(value.producer())
            for value in node.inputs
        )
        and any(quantises(reader) for value in node.outputs for reader in value.consumers())
        for node in opened.model.graph
    )


def _proof(
    program: CProgram,
    source: CSource,
    opened: Unfolded,
    plan: PlanResult,
    wanted: Wanted,
    count: int,
    tools: Tools,
    progress: Progress,
) -> Proof:
    """Return the proof of `source`, the text of `program`, by `count` runs beside onnxruntime on `wanted` inputs, or smaller ones."""
    coarsest = max((precision_of(dtype.numpy()) for dtype in halves(opened.model)), default=0.0)

    def beside(inputs: Wanted) -> tuple[list[CheckedRun], bytes, Proof]:
        runs = list(runs_of(opened, plan, inputs, count))
        if source.transfers and len(runs) == 1:
            runs = runs * RUNS  # the copies are made early in one run, and late in another
        output = output_of(source, runs, tools)
        return runs, output, compared(source, runs, output, tools, coarsest)

    runs, output, proof = beside(wanted)
    if not program.is_rounded:
        smaller = None if proof.equal else calm(opened, wanted)
        if smaller is not None and compared(source, runs, output, tools, HALF_PRECISION).equal:
            again = beside(smaller)[-1]
            proof = (
                replace(again, rounding=max(output_error.max_abs for output_error in proof.outputs))
                if again.equal
                else proof
            )
        if proof.equal:
            return proof
    progress("running C, node by node")
    if program.is_rounded:
        all_sizes = len(runs) if plan.ranges else RUNS
        runs = runs[: 1 if tools.runner else all_sizes]  # an emulator is slow
    results = compared_results(program, _NAME, opened, runs, tools, output, coarsest)
    return replace(proof, results=results) if program.is_rounded else proof


@contextmanager
def _with_objects(tools: Tools | None, kernels: OwnKernels | None) -> Iterator[Tools | None]:
    """Yield `tools` with the objects of the user's functions as further files. Raises UsageError where the compiler refuses them."""
    if tools is None or kernels is None:
        yield tools
        return
    with tempfile.TemporaryDirectory(prefix="onnxtile-") as folder:
        command, reason = _without_files(tools.compiler), "the C compiler refuses a source of the table of kernels"
        objects = compiled_objects(kernels, command, Path(folder), lambda words: succeed(words, reason))
        yield replace(tools, compiler=(*tools.compiler, *kernels.options, *map(str, objects)))


# The bytes of a program, by the tools beside its compiler.

_SECTION = re.compile(r"^(\.\S+)\s+(\d+)", re.MULTILINE)


def footprint_of(source: CSource, tools: Tools, *, required: bool) -> Footprint | None:
    """Return the bytes of `source`; None where the tool `size` is missing beside the compiler, or it fails.

    Raises UsageError where the compiler refuses the program, and it is `required` to take it.
    """
    command = _without_files(tools.compiler)
    named, size = _named(command)
    if size is None:
        return None
    with tempfile.TemporaryDirectory(prefix="onnxtile-") as name:
        folder = Path(name)
        options = ("-std=c99", OPTIMISED, "-c", str(source.save(folder)), "-o", str(folder / "net.o"))
        done = command_done([*command, "-fstack-usage", *options], None)
        if done.returncode:
            words = [*command, *options]
            done = succeed(words, REFUSED) if required else command_done(words, None)
        objects = [word for word in tools.compiler if word.endswith(".o")]
        listed = command_done([size, "-A", str(folder / "net.o"), *objects], None)
        if done.returncode or listed.returncode:
            return None
        usages = [path.read_text("utf-8") for path in folder.glob("*.su")]
    sections = [(section, int(count)) for section, count in _SECTION.findall(listed.stdout)]

    def total(*starts: str) -> int:
        return sum(count for section, count in sections if section.startswith(starts))

    weights = source.weights
    constants = total(".rodata", ".data", ".data.rel.ro") + len(source.weights_file)
    return Footprint(
        named,
        total(".text"),
        max(constants, weights),
        total(".bss"),
        _stack(usages, source.title, source.repeats),
    )


_COMPILER = re.compile(r"(gcc|g\+\+|clang|clang\+\+|cc|c\+\+)(-[\d.]+)?$")


def _named(command: Sequence[str]) -> tuple[str, str | None]:
    """Return what to call a compiler, and the tool `size` beside it, None where that is missing.

    It may come after other words, as in "ccache gcc" or "python -m ziglang cc".
    """
    index = next((index for index, word in enumerate(command) if _COMPILER.search(word)), 0)
    words = [Path(word).name for word in command[: index + 1] if not word.startswith("-")]
    return " ".join(words), shutil.which(_COMPILER.sub("size", command[index]))


def _without_files(command: tuple[str, ...]) -> list[str]:
    """Return `command` without sources, linker scripts and specifications, which are for a whole program."""
    kept, skips = [], False
    for word in command:
        if skips:
            skips = False
        elif word == "-T":
            skips = True
        elif not word.endswith((".c", ".s", ".S", ".ld", ".o")) and not word.startswith(("--specs", "-specs", "-Wl,")):
            kept.append(word)
    return kept


def _stack(usages: list[str], name: str, repeats: int) -> int | None:
    """Return the deepest stack, from the lines that gcc writes of each function: those of the walk, and of the deepest kernel.

    Each repeat inside another walks again.
    """
    if not usages:
        return None
    rows = [line.split("\t") for text in usages for line in text.splitlines()]
    sizes = {row[0].rpartition(":")[2]: int(row[1]) for row in rows if len(row) > 1}
    times = {"run": 1, "call": 1, "walk": repeats + 1, "repeat": repeats}
    always = sum(sizes.get(f"{name}_{function}", 0) * count for function, count in times.items())
    kernels = [size for function, size in sizes.items() if function.startswith(f"{name}_kernel_")]
    others = [size for function, size in sizes.items() if not function.startswith(name)]
    return always + max(kernels, default=0) + sum(sorted(others)[-1:])


# Kernels that run in place: whether each computes the same there, found by running it alone; others read a copy of the operand.
#
# A plan writes a result over an operand where the operator allows it. Whether a function of loops allows it is a matter of its text: it may
# read an element that it has overwritten. So each different kernel runs alone on random operands, once with its results apart, and once at
# the distances that the plan gives them. Where a bit differs, the operands that results overlap are copied to the workspace before.


_UNIT = 64
"""The alignment of operands that are apart."""
_FILL = 0xA5


@dataclass(frozen=True)
class OperandLayout:
    """A kernel with the blocks that its operands are in: for each, by name, the number of the block and the offset in it."""

    kernel: DistinctKernel
    addresses: tuple[tuple[str, int, int], ...]


def checked(program: CProgram, tools: Tools) -> tuple[CProgram, Mapping[str, int]]:
    """Return `program` with copies of the operands that kernels would overwrite too early, and the calls that read copies, by operator.

    Raises UsageError, Mismatch.
    """
    layouts = list(dict.fromkeys(layout for call in flat(program.calls) if (layout := _layout(call)) is not None))
    unsafe = set(_unsafe(layouts, tools))
    if not unsafe:
        return program, {}
    start = end = align(program.workspace, _UNIT)
    copied: Counter[str] = Counter()

    def apart(call: PlainCall) -> Iterator[ProgramCall]:
        nonlocal end
        layout = _layout(call)
        if layout is None or layout not in unsafe or not isinstance(call, KernelCall):
            yield call
            return
        copied[call.kernel.op_type] += 1
        addresses, at = dict(call.addresses), start
        for name in _overwritten(layout):
            size = _sizes(call.kernel)[name]
            addresses[name] = ByteAddress(WORKSPACE, 0, at)
            yield CopyCall(addresses[name], call.addresses[name], size)
            at = align(at + size, _UNIT)
        end = max(end, at)
        yield replace(call, addresses=addresses)

    calls, ends = list[ProgramCall](), [0]
    for call in program.calls:
        calls += _mapped([call], apart)
        ends.append(len(calls))
    results = tuple(replace(result, calls=ends[result.calls]) for result in program.results)
    safe = replace(program, calls=tuple(calls), workspace=end, results=results)
    return safe, dict(sorted(copied.items()))


def _mapped(
    calls: Iterable[ProgramCall], change: Callable[[PlainCall], Iterable[ProgramCall]]
) -> Iterator[ProgramCall]:
    for call in calls:
        if isinstance(call, Branch | RepeatedCalls):
            yield call.changed(lambda address: address, lambda calls: _mapped(calls, change))
        else:
            yield from change(call)


def _sizes(kernel: DistinctKernel) -> dict[str, int]:
    return {name: tensor.bytes for name, tensor in kernel.tensors}


def _layout(call: PlainCall) -> OperandLayout | None:
    """Return the layout of a call where a result overlaps an operand, else None; a function of the user's has to allow that.

    Over ranges it is that at the largest sizes. Operators on growing states append, and write over nothing else.
    """
    if not isinstance(call, KernelCall) or call.kernel.own is not None:
        return None
    if any(tensor.strides for _, tensor in call.kernel.tensors):
        return None
    kernel = replace(call.kernel, others=())
    sizes = _sizes(kernel)
    ordered = sorted(
        call.addresses,
        key=lambda name: (call.addresses[name].kind, call.addresses[name].number, call.addresses[name].offset),
    )
    blocks: list[list[str]] = []
    starts: list[int] = []
    end, before = 0, ("", -1)
    for name in ordered:
        address = call.addresses[name]
        if (address.kind, address.number) != before or address.offset >= end:
            blocks.append([])
            starts.append(address.offset)
            end, before = address.offset, (address.kind, address.number)
        blocks[-1].append(name)
        end = max(end, address.offset + sizes[name])
    of = {
        name: (number, call.addresses[name].offset - starts[number])
        for number, block in enumerate(blocks)
        for name in block
    }
    numbers = {number: order for order, number in enumerate(dict.fromkeys(of[name][0] for name in call.addresses))}
    layout = OperandLayout(kernel, tuple((name, numbers[of[name][0]], of[name][1]) for name in call.addresses))
    return layout if _overwritten(layout) else None


def _overwritten(layout: OperandLayout) -> tuple[str, ...]:
    """Return the operands that a result overlaps."""
    sizes = _sizes(layout.kernel)
    results = [row for row in layout.addresses if row[0].startswith("o")]
    return tuple(
        name
        for name, block, offset in layout.addresses
        if name.startswith("i")
        and any(
            block == other and offset < at + sizes[result] and at < offset + sizes[name]
            for result, other, at in results
        )
    )


# The run of kernels alone.


def _unsafe(layouts: Sequence[OperandLayout], tools: Tools) -> Iterator[OperandLayout]:
    """Yield the `layouts` at which a kernel gives other bits than with its results apart."""
    if not layouts:
        return
    kernels = list(dict.fromkeys(layout.kernel for layout in layouts))
    in_c = kernels_in_c(kernels, "kernel")
    operands = dict(zip(kernels, _operands(kernels), strict=True))
    written = dict(zip(kernels, in_c.kernels, strict=True))
    images = [_images(layout, operands[layout.kernel]) for layout in layouts]
    runs = [_run(written[layout.kernel], image) for layout, pair in zip(layouts, images, strict=True) for image in pair]
    output = _output(in_c, runs, [image for pair in images for image in pair], tools)
    at = 0
    for layout, pair in zip(layouts, images, strict=True):
        results = []
        for image in pair:
            results.append([output[at + offset : at + offset + size] for offset, size in image.results(layout.kernel)])
            at += len(image.bytes)
        if results[0] != results[1]:
            yield layout


def _operands(kernels: Sequence[DistinctKernel]) -> list[dict[str, Array]]:
    """Return random operands of each of `kernels`, by name, that its operator takes; those that decide what it is have their numbers."""
    model = ir.from_proto(model_of(kernels))
    feeds = sample_feeds(model, lambda value: None if value.shape is None else value.shape.numpy())
    known = {name: value.const_value.numpy() for name, value in model.graph.initializers.items() if value.const_value}
    return [
        {
            name: np.asarray({**feeds, **known}[f"k{number}_{name}"])
            for name, _ in kernel.tensors
            if name.startswith("i")
        }
        for number, kernel in enumerate(kernels)
    ]


@dataclass(frozen=True)
class MemoryImage:
    """The bytes of a memory before a kernel runs, and the offset of each operand and result in it, by name."""

    bytes: bytes
    offsets: Mapping[str, int]

    def results(self, kernel: DistinctKernel) -> list[tuple[int, int]]:
        """Return the offset and the bytes of each result of `kernel`."""
        return [(self.offsets[name], size) for name, size in _sizes(kernel).items() if name.startswith("o")]


def _images(layout: OperandLayout, operands: Mapping[str, Array]) -> tuple[MemoryImage, MemoryImage]:
    """Return the memory in which all tensors of `layout` are apart, and that in which they are where it says, with equal operands."""
    sizes = _sizes(layout.kernel)
    ends: dict[int, int] = {}
    for name, block, offset in layout.addresses:
        ends[block] = max(ends.get(block, 0), offset + sizes[name])
    starts, end = {}, 0
    for block, size in ends.items():
        starts[block] = end
        end = align(end + size, _UNIT)
    inside = {name: starts[block] + offset for name, block, offset in layout.addresses}
    shared = bytearray([_FILL]) * end
    for name, array in operands.items():
        shared[inside[name] : inside[name] + sizes[name]] = array.tobytes()
    apart, alone = {}, bytearray()
    for name, size in sizes.items():
        if name in inside:
            apart[name] = len(alone)
            data = shared[inside[name] : inside[name] + size] if name in operands else bytearray([_FILL]) * size
            alone += data + bytearray([_FILL]) * (align(len(data), _UNIT) - len(data))
    return MemoryImage(bytes(alone), apart), MemoryImage(bytes(shared), inside)


def _run(kernel: CKernel, image: MemoryImage) -> str:
    """Return the statements that read `image`, run `kernel` on it, and write it."""
    numbers = ", ".join(map(str, kernel.numbers)) or "0"
    addresses = ", ".join(f"memory + {image.offsets[name]}u" for name in kernel.arguments)
    size = f"{len(image.bytes)}u"
    return f"""\
    if (fread(memory, 1, {size}, in) != {size}) return 2;
    {{
        const idx_t p[] = {{{numbers}}};
        uint8_t *const x[] = {{{addresses}}};
        kernel_{kernel.function}(p, x);
    }}
    if (fwrite(memory, 1, {size}, out) != {size}) return 2;
"""


def _output(in_c: CKernels, runs: Sequence[str], images: Sequence[MemoryImage], tools: Tools) -> bytes:
    """Return what the program of all `runs` writes. Raises UsageError where it does not compile, Mismatch where it fails."""
    memory = max(len(image.bytes) for image in images)
    text = "\n".join([in_c.head, *(function.text for function in in_c.functions)])
    with tempfile.TemporaryDirectory(prefix="onnxtile-") as name:
        folder = Path(name)
        (folder / "main.c").write_text(
            text + _C["kernels_main"].format(memory=max(1, memory), runs="".join(runs)), "utf-8"
        )
        (folder / "input.bin").write_bytes(b"".join(image.bytes for image in images))
        command = [*tools.compiler, *WARNINGS, "-O2", str(folder / "main.c"), "-lm", "-o", str(folder / "program")]
        succeed(command, "the C compiler refuses kernels")
        done = command_done([str(folder / "program")], folder)
        output = (folder / "output.bin").read_bytes() if (folder / "output.bin").exists() else b""
    if done.returncode or len(output) != sum(len(image.bytes) for image in images):
        raise Mismatch(f"the program of kernels that run in place ended with {done.returncode}", hint=REPORT)
    return output
