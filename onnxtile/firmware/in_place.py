"""Kernels that run in place: whether each computes the same there, found by running it alone; others read a copy of the operand.

A plan writes a result over an operand where the operator allows it. Whether a function of loops allows it is a matter of its text: it
may read an element that it has overwritten. So each different kernel runs alone on random operands, once with its results apart, and once
at the distances that the plan gives them. Where a bit differs, the operands that results overlap are copied to the workspace before.
"""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import onnx_ir as ir

from onnxtile.firmware.kernels import CKernel, CKernels, kernels_in_c, model_of
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
from onnxtile.firmware.prove import REPORT, WARNINGS, Tools, command_done, succeed
from onnxtile.model.feeds import sample_feeds
from onnxtile.planning.offsets.problem import align
from onnxtile.system.dataclass import dataclass
from onnxtile.system.errors import Mismatch
from onnxtile.system.runtime import Array

_UNIT = 64
"""The alignment of operands that are apart."""
_FILL = 0xA5


@dataclass(frozen=True)
class OperandLayout:
    """A kernel with the blocks that its operands are in: for each, by name, the number of the block and the offset in it."""

    kernel: DistinctKernel
    addresses: tuple[tuple[str, int, int], ...]


class CheckedProgram(NamedTuple):
    """A program whose kernels compute the same in place as elsewhere. `copied` counts the calls that read copies, by operator."""

    program: CProgram
    copied: Mapping[str, int]


def checked(program: CProgram, tools: Tools) -> CheckedProgram:
    """Return `program` with copies of the operands that kernels would overwrite too early. Raises UsageError, Mismatch."""
    layouts = list(dict.fromkeys(layout for call in flat(program.calls) if (layout := _layout(call)) is not None))
    unsafe = set(_unsafe(layouts, tools))
    if not unsafe:
        return CheckedProgram(program, {})
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
    return CheckedProgram(safe, dict(sorted(copied.items())))


def _mapped(
    calls: Iterable[ProgramCall], change: Callable[[PlainCall], Iterable[ProgramCall]]
) -> Iterator[ProgramCall]:
    for call in calls:
        if isinstance(call, Branch):
            yield replace(
                call, then=tuple(_mapped(call.then, change)), otherwise=tuple(_mapped(call.otherwise, change))
            )
        elif isinstance(call, RepeatedCalls):
            yield replace(call, turn=tuple(_mapped(call.turn, change)))
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

_MAIN = """
#include <stdio.h>
static _Alignas(64) uint8_t memory[{memory}];
int main(void) {{
    FILE *in = fopen("input.bin", "rb"), *out = fopen("output.bin", "wb");
    if (!in || !out) return 2;
{runs}
    fclose(in);
    return fclose(out) ? 2 : 0;
}}
"""


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
        (folder / "main.c").write_text(text + _MAIN.format(memory=max(1, memory), runs="".join(runs)), "utf-8")
        (folder / "input.bin").write_bytes(b"".join(image.bytes for image in images))
        command = [*tools.compiler, *WARNINGS, "-O2", str(folder / "main.c"), "-lm", "-o", str(folder / "program")]
        succeed(command, "the C compiler refuses kernels")
        done = command_done([str(folder / "program")], folder)
        output = (folder / "output.bin").read_bytes() if (folder / "output.bin").exists() else b""
    if done.returncode or len(output) != sum(len(image.bytes) for image in images):
        raise Mismatch(f"the program of kernels that run in place ended with {done.returncode}", hint=REPORT)
    return output
