"""Runs a program in C on an emulated Cortex-M7, and measures it: flash, RAM and instructions; or on this machine, and measures its time.

Flash and static memory are those of the model's own object files, by the compiler's `size`. The stack is painted before the run, so that
its deepest use is seen, functions of the C library included. Allocations are counted at malloc and free. Instructions are those that QEMU
counts by `-icount`: read from a timer, of 40 instructions a tick.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf
from pathlib import Path

import numpy as np

from tests.bench.commands import ROOT

CPU = ("-mcpu=cortex-m7", "-mfpu=fpv5-d16", "-mfloat-abi=hard")
GCC = ("arm-none-eabi-gcc", *CPU)
_BOARD = ROOT / "docs" / "firmware"
_LINK = ("--specs=rdimon.specs", "-nostartfiles", "-Wl,--wrap=malloc,--wrap=calloc,--wrap=free,--wrap=realloc")
QEMU = (
    "qemu-system-arm",
    "-M",
    "mps2-an500",
    "-display",
    "none",
    "-serial",
    "none",
    "-monitor",
    "none",
    "-semihosting",
)
_SECONDS = 900
_PAINTED = 1 << 17
_FLASH = (1 << 22) - (1 << 17)
"""Bytes of flash, without those of the program around a model."""

_MAIN = """\
#include <malloc.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
%(declared)s
static size_t held, most;
void *__real_malloc(size_t);
void __real_free(void *);
void *__wrap_malloc(size_t size) {
    size_t *made = __real_malloc(size + 16);
    if (!made) exit(5);
    *made = size;
    held += size;
    if (held > most) most = held;
    return (char *)made + 16;
}
void *__wrap_calloc(size_t count, size_t size) { return memset(__wrap_malloc(count * size), 0, count * size); }
void __wrap_free(void *at) {
    if (!at) return;
    held -= *(size_t *)((char *)at - 16);
    __real_free((char *)at - 16);
}
void *__wrap_realloc(void *at, size_t size) {
    void *made = __wrap_malloc(size);
    if (at) {
        size_t before = *(size_t *)((char *)at - 16);
        memcpy(made, at, before < size ? before : size);
        __wrap_free(at);
    }
    return made;
}

#define PAINTED %(painted)du
#define MARGIN 64u
#define TIMER ((volatile uint32_t *)0x40000000u)
static volatile unsigned char *below;
__attribute__((noinline)) static void paint(void) {
    below = (unsigned char *)__builtin_frame_address(0) - MARGIN;
    for (uint32_t i = 1; i <= PAINTED; ++i) below[-(int32_t)i] = 0xC5;
}
__attribute__((noinline)) static uint32_t depth(void) {
    uint32_t i = PAINTED;
    while (i && below[-(int32_t)i] == 0xC5) --i;
    return i + MARGIN;
}
__attribute__((noinline)) static void run(void) { %(run)s }

int main(void) {
    FILE *in = fopen("input.bin", "rb");
    if (!in) return 2;
    %(prepare)s
%(reads)s
    fclose(in);
    most = held;
    paint();
    TIMER[2] = 0xFFFFFFFFu;
    TIMER[1] = 0xFFFFFFFFu;
    TIMER[0] = 1;
    const uint32_t start = TIMER[1];
    run();
    const uint32_t ticks = start - TIMER[1];
    const uint32_t stack = depth();
    const size_t heap = most;
    FILE *out = fopen("output.bin", "wb");
    if (!out) return 2;
%(writes)s
    fclose(out);
    FILE *figures = fopen("figures.txt", "w");
    fprintf(figures, "%%lu %%lu %%lu\\n", (unsigned long)ticks, (unsigned long)stack, (unsigned long)heap);
    return fclose(figures) ? 2 : 0;
}
"""

_TIMED = """\
#define _POSIX_C_SOURCE 199309L
#include <stdint.h>
#include <stdio.h>
#include <time.h>
%(declared)s
static double now(void) {
    struct timespec at;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &at);
    return (double)at.tv_sec * 1e3 + (double)at.tv_nsec * 1e-6;
}
int main(void) {
    FILE *in = fopen("input.bin", "rb");
    double best = 1e30, total = 0;
    if (!in) return 2;
    %(prepare)s
    do {
        rewind(in);
%(reads)s
        const double start = now();
        %(run)s
        const double taken = now() - start;
        if (taken < best) best = taken;
        total += taken;
    } while (total < 100);
    printf("%%.6f\\n", best);
    return 0;
}
"""


@dataclass(frozen=True)
class Port:
    """An input or output: its bytes, and the address in C where the program has it; None for a buffer that the caller gives."""

    name: str
    size: int
    address: str | None = None


@dataclass(frozen=True)
class Program:
    """A model in C: its sources, options of the compiler, and the text in C that prepares and runs it.

    `run` is a statement. In it, `{name}` of an input or output is the address of the caller's buffer.
    """

    sources: Sequence[Path]
    options: Sequence[str]
    run: str
    inputs: Sequence[Port]
    outputs: Sequence[Port]
    declared: str = ""
    prepare: str = ""


@dataclass(frozen=True)
class Figures:
    """What a program takes, in bytes, and the instructions of a run. RAM is static memory, buffers of the caller, heap and stack."""

    flash: int
    static: int
    buffers: int
    heap: int | None = None
    stack: int | None = None
    instructions: int | None = None

    @property
    def ram(self) -> int:
        """All memory."""
        return self.static + self.buffers + (self.heap or 0) + (self.stack or 0)


class CannotRun(Exception):
    """A program that does not compile, or that the board does not run; the text is the reason."""


def measured(program: Program, inputs: Mapping[str, np.ndarray], folder: Path) -> tuple[Figures, bytes]:
    """Return the figures of `program`, and the bytes of its outputs. Raises CannotRun.

    Constants that exceed the 4 MiB of flash are in the board's PSRAM.
    """
    objects = [_object(source, program.options, folder) for source in program.sources]
    flash, static = (sum(column) for column in zip(*map(_sizes, objects), strict=True))
    given = [port for port in (*program.inputs, *program.outputs) if port.address is None]
    buffers = sum(port.size for port in given)
    _write_main(_MAIN, program, inputs, folder)
    main = [str(folder / "main.c"), str(_BOARD / "start.c")]
    linker = _BOARD / ("mps2-an500.ld" if flash < _FLASH else "mps2-an500-psram.ld")
    elf = folder / "program.elf"
    command = [*GCC, "-O2", "-w", *_LINK, "-T", str(linker), *main, *map(str, objects), "-lm", "-o", str(elf)]
    _done(command, folder, "it does not link")
    _done([*QEMU, "-icount", "shift=0", "-kernel", str(elf)], folder, "it does not run")
    ticks, stack, heap = map(int, (folder / "figures.txt").read_text().split())
    if stack >= _PAINTED:
        raise CannotRun(f"its stack is deeper than {_PAINTED:,} bytes")
    return Figures(flash, static, buffers, heap, stack, ticks * 40), (folder / "output.bin").read_bytes()


_TURNS = 25


def milliseconds(programs: Sequence[tuple[Program, Path]], inputs: Mapping[str, np.ndarray]) -> list[float]:
    """Return the processor time of the quickest run of each program on this machine; they run in turns, each in its folder."""
    for program, folder in programs:
        _write_main(_TIMED, program, inputs, folder)
        sources = [str(folder / "main.c"), *map(str, program.sources)]
        _done(["gcc", "-O2", "-w", *program.options, *sources, "-lm", "-o", "program"], folder, "it does not compile")
    best = [inf] * len(programs)
    for _ in range(_TURNS):
        for number, (_, folder) in enumerate(programs):
            best[number] = min(best[number], float(_done(["./program"], folder, "it does not run")))
    return best


def _write_main(template: str, program: Program, inputs: Mapping[str, np.ndarray], folder: Path) -> None:
    """Write the program around a model, and the file of its inputs."""
    (folder / "main.c").write_text(_main(template, program), "utf-8")
    (folder / "input.bin").write_bytes(b"".join(inputs[port.name].tobytes() for port in program.inputs))


def _object(source: Path, options: Sequence[str], folder: Path) -> Path:
    made = folder / f"{source.stem}.o"
    _done([*GCC, "-O2", "-w", *options, "-c", str(source), "-o", str(made)], folder, "it does not compile")
    return made


_SECTION = re.compile(r"^(\.\S+)\s+(\d+)", re.MULTILINE)


def _sizes(made: Path) -> tuple[int, int]:
    """Return the bytes of an object file in flash, and those in RAM: initialised data are in both."""
    listed = subprocess.run(["arm-none-eabi-size", "-A", str(made)], capture_output=True, text=True, check=True).stdout
    found = [(name, int(size)) for name, size in _SECTION.findall(listed)]
    flash = sum(size for name, size in found if name.startswith((".text", ".rodata", ".data")))
    return flash, sum(size for name, size in found if name.startswith((".data", ".bss")))


def _main(template: str, program: Program) -> str:
    declared, addresses = [program.declared], dict[str, str]()
    for port in (*program.inputs, *program.outputs):
        addresses[port.name] = port.address or f"port_{len(addresses)}"
        if port.address is None:
            declared.append(f"__attribute__((aligned(16))) unsigned char {addresses[port.name]}[{port.size}];")
    reads = [
        f"    if (fread((void *)({addresses[port.name]}), 1, {port.size}, in) != {port.size}) return 2;"
        for port in program.inputs
    ]
    writes = [f"    fwrite((void *)({addresses[port.name]}), 1, {port.size}, out);" for port in program.outputs]
    parts = {"declared": declared, "reads": reads, "writes": writes}
    texts = {name: "\n".join(lines) for name, lines in parts.items()}
    run = program.run
    for name, address in addresses.items():  # a name may have dots, which str.format reads
        run = run.replace(f"{{{name}}}", address)
    return template % {**texts, "painted": _PAINTED, "run": run, "prepare": program.prepare}


def _done(command: Sequence[str], folder: Path, reason: str) -> str:
    """Run a command in a folder, and return what it prints. Raises CannotRun."""
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=_SECONDS, check=False)
    except subprocess.TimeoutExpired as error:
        raise CannotRun(f"{reason} within {_SECONDS} s") from error
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if "error" in line or "overflowed" in line]
        last = {4: "a fault", 5: "no memory for malloc"}.get(done.returncode, f"it ended with {done.returncode}")
        raise CannotRun(f"{reason}: {lines[0] if lines else last}")
    return done.stdout
