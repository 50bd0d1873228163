"""net.c and net.h: a program in C99, which compiles as C++ too, without allocation, input or output."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from onnxtile.firmware.addresses import FlashWeights, placed
from onnxtile.firmware.calls import (
    SpaceOffset,
    TableCall,
    TableEntry,
    depth,
    grouped,
    stream_of,
    units_of,
)
from onnxtile.firmware.interface import (
    Interface,
    accessors,
    ctype_of,
    header_text,
    prefix_of,
    reset,
    run_text,
    size_variables,
)
from onnxtile.firmware.kernels import NO_KERNELS, CFunction, CKernel, kernels_in_c
from onnxtile.firmware.program import (
    ARENA,
    CONSTANT,
    WORKSPACE,
    Branch,
    ByteAddress,
    CopyCall,
    CProgram,
    DistinctKernel,
    KernelCall,
    OpenNumber,
    ProgramCall,
    RepeatedCalls,
    StreamPort,
    flat,
    kernels_of,
)
from onnxtile.report.format import c_texts
from onnxtile.report.formats.to_header import comment, filled
from onnxtile.system.dataclass import dataclass
from onnxtile.system.errors import about_options

_C = c_texts("onnxtile.firmware", "program.c")
"""Texts in C, by name."""

_MOST_IN_CODE = 1 << 29
"""Bytes of weights in the text of C: each takes three of text, and a compiler many more."""


@dataclass(frozen=True)
class CSource:
    """The text of a program in C: net.c and net.h, and figures of it.

    `kernels` are the different kernels, `functions` the functions that run them, `calls` the calls of a run. `tables` are the bytes of the
    tables, `weights` those of the constants, `arena` and `workspace` those of memory. `checks` says whether it looks at its results.
    `weights_file` has the constants where they are in no text of C. `repeats` says how deep repeats are inside each other, `transfers` how
    many copies run beside kernels. `code` is the text of net.c, `header` that of net.h, `title` the name of the model. `interface` has the
    arguments and their names in C. `blocks` counts the loops and the runs of single calls into which calls are packed.
    """

    code: str
    header: str
    title: str
    interface: Interface
    kernels: int
    functions: int
    calls: int
    blocks: int
    tables: int
    weights: int
    workspace: int
    checks: bool
    weights_file: bytes = b""
    repeats: int = 0
    transfers: int = 0

    def save(self, folder: Path) -> Path:
        """Write net.c and net.h to `folder`; return the path of the first."""
        code = folder / f"{self.title}.c"
        code.write_text(self.code, "utf-8")
        code.with_name(f"{self.title}.h").write_text(self.header, "utf-8")
        return code

    def named(self, title: str) -> CSource:
        """Return the same program with another title. No name of a tensor is in the way: all of them come after the start."""
        before, name = self.interface.name, prefix_of(title)

        def renamed(text: str) -> str:
            text_of_files = text.replace(f"{self.title}.", f"{comment(title)}.")  # names of files
            return text_of_files.replace(before.upper(), name.upper()).replace(before, name)

        arenas = tuple((arena, renamed(variable), size) for arena, variable, size in self.interface.arenas)
        streams = tuple((port, renamed(function)) for port, function in self.interface.streams)
        interface = replace(self.interface, name=name, arenas=arenas, streams=streams)
        return replace(self, code=renamed(self.code), header=renamed(self.header), title=title, interface=interface)


def written(program: CProgram, title: str, weights_in: str = "code") -> CSource:
    """Return `program` in C; all its names begin with `title`. Raises UsageError for a kernel that cannot be written.

    The weights are in the text, or with `weights_in` "file" in bytes of their own.
    """
    name = prefix_of(title)
    kernels = list(kernels_of(program.calls))
    in_c = kernels_in_c(kernels, f"{name}_kernel", _heavy(program), program.points)
    numbers = {kernel: number for number, kernel in enumerate(kernels)}
    operands = _constants(program, in_c.kernels, numbers)
    weights = placed({number: program.constants[number] for number in operands})
    in_file = weights.size if weights_in == "file" else 0
    if not in_file and weights.size > _MOST_IN_CODE:
        raise about_options(
            f"a compiler takes no text with {weights.size:,} bytes of weights",
            hint='keep them in a file: {target} target.toml, and in it weights = "file"',
        )
    spaces = _Spaces(program, weights)
    table = _CallTable(in_c.kernels, numbers, spaces)
    entries = [table.entry(call) for call in program.calls]
    units, repeats = units_of(entries, spaces.count), depth(entries)
    stream = stream_of(entries, units)
    interface = Interface.from_program(program, name)
    helper_texts = _HELPERS | {
        f"rows_{number}": (1, f"{function}(({ctype_of(port)} *)x[0], (size_t)p[0], (size_t)p[1]);")
        for number, (port, function) in enumerate(interface.streams)
    }
    functions = [*in_c.functions, *(_helper_function(name, kind, *helper_texts[kind]) for kind in table.helpers)]
    computed: dict[OpenNumber, int] = {}
    described, starts = _kernel_rows(
        [*in_c.kernels, *table.helper_kernels], functions, computed if program.sizes else None
    )
    largest = max((len(kernel.numbers) for kernel in (*in_c.kernels, *table.helper_kernels)), default=0)
    code = [
        _head(title, name, in_c.head),
        *([f"const uint8_t *{name}_weights;"] if in_file else _weights(weights, name)),
        *_memory(interface.arenas, name, program.workspace),
        *([filled(_C["defined"], name.upper())] if table.transfers else []),
        *(function.text for function in functions),
        f"static void (*const {name}_functions[])(const idx_t *, uint8_t *const *) = {{",
        *_wrapped(
            f"{name}_kernel_{function_number}" for function_number in (*range(len(in_c.functions)), *table.helpers)
        ),
        "};",
        *_bytes(f"{name}_kernels", "uint8_t", described),
        *_bytes(f"{name}_starts", "uint16_t" if max(starts, default=0) < 1 << 16 else "uint32_t", starts),
        *_bytes(f"{name}_calls", "uint8_t", stream.data),
        *_bytes(f"{name}_units", "uint8_t" if max(units) < 256 else "uint32_t", units),
        *size_variables(interface, len(computed)),
        filled(
            _C["run"],
            name,
            operands=str(max((function.operands for function in functions), default=1)),
            numbers=str(max(largest, 1)),
            spaces=str(spaces.count),
            number=filled(_COMPUTED, name) if program.sizes else "(idx_t)number",
            **_repeat_texts(name, spaces.count, repeats),
        ),
        *run_text(interface, list(_bases(interface, spaces, weights if in_file else None)), computed),
        *accessors(interface),
        *reset(interface),
    ]
    tables = (
        len(described) + len(starts) * (2 if max(starts, default=0) < 1 << 16 else 4) + len(stream.data) + len(units)
    )
    declared = [_rows_declared(*stream) for stream in interface.streams]
    declared += [filled(_C["declared"], name.upper())] if table.transfers else []
    return CSource(
        "\n".join(code) + "\n",
        header_text(interface, title, program.alignment, program.workspace, in_file, declared),
        title,
        interface,
        len(kernels),
        len(functions),
        sum(1 for _ in flat(program.calls)),
        stream.blocks,
        tables,
        weights.size,
        program.workspace,
        "check" in table.helpers,
        weights.file if in_file else b"",
        repeats,
        table.transfers,
    )


_HEAVY = 0.02
"""A kernel with at least this share of all multiply-accumulates has its sizes as constants in a function of its own.

A compiler then leaves out loops of one turn, and conditions that always hold. There are at most 50 such functions.
"""


def _heavy(program: CProgram) -> frozenset[DistinctKernel]:
    """Return the kernels that do most of the work, by the calls in the program. A call in a Loop counts once."""
    macs = Counter[DistinctKernel]()
    for call in flat(program.calls):
        if isinstance(call, KernelCall):
            macs[call.kernel] += call.kernel.macs
    least = _HEAVY * macs.total()
    return frozenset(kernel for kernel, count in macs.items() if count >= least > 0)


def _constants(program: CProgram, kernels: Sequence[CKernel], numbers: Mapping[DistinctKernel, int]) -> list[int]:
    """Return the numbers of the constants that functions and copies read; others are in the text of functions."""
    numbers_in_use: dict[int, None] = {}
    for call in flat(program.calls):
        if isinstance(call, KernelCall):
            addresses = [call.addresses[name] for name in kernels[numbers[call.kernel]].arguments]
        else:
            addresses = [call.source] if isinstance(call, CopyCall) else [*call.addresses]
        numbers_in_use.update((address.number, None) for address in addresses if address.kind == CONSTANT)
    return sorted(numbers_in_use)


class _Spaces:
    """The blocks of memory that operands may be in, by number: arenas, workspace, weights, arguments."""

    def __init__(self, program: CProgram, weights: FlashWeights) -> None:
        self._weights = weights
        blocks = [(ARENA, number) for number in range(len(program.arenas))]
        blocks += [(WORKSPACE, 0)] if program.workspace else []
        blocks += [(CONSTANT, size) for size in weights.blocks]
        ports = (port.address for port in (*program.inputs, *program.outputs) if port.is_argument)
        blocks += [(address.kind, address.number) for address in ports]
        self._numbers = {block: number for number, block in enumerate(blocks)}

    @property
    def count(self) -> int:
        return max(1, len(self._numbers))

    def __iter__(self) -> Iterator[tuple[str, int]]:
        return iter(self._numbers)

    def operand(self, address: ByteAddress) -> SpaceOffset:
        if address.kind == CONSTANT:
            size, start = self._weights.addresses[address.number]
            return SpaceOffset(self._numbers[CONSTANT, size], start + address.offset)
        return SpaceOffset(self._numbers[address.kind, address.number], address.offset)


def _bases(interface: Interface, spaces: _Spaces, file: FlashWeights | None) -> Iterator[str]:
    """Yield the addresses of all `spaces`; `file` are weights in a file of their own."""
    name = interface.name
    in_c = {
        (port.address.kind, port.address.number): argument for port, argument in (*interface.inputs, *interface.outputs)
    }
    for kind, number in spaces:
        if kind == ARENA:
            yield interface.arenas[number][1]
        elif kind == WORKSPACE:
            yield f"{name}_workspace"
        elif kind == CONSTANT:
            yield f"(uint8_t *){f'{name}_weights_{number * 8}' if file is None else f'({name}_weights + {file.start(number)}u)'}"
        else:
            yield f"(uint8_t *){in_c[kind, number]}"


_HELPERS = {
    # A copy of so many bytes, from the second address to the first.
    "copy": (2, "memmove(x[0], x[1], (size_t)p[0]);"),
    # The start of the copy of this number, of so many bytes, which runs beside the calls after it; and its end.
    "start": (2, "${p}_copy((uint32_t)p[0], x[0], x[1], (size_t)p[1]);"),
    "wait": (0, "(void)x;\n    ${p}_wait((uint32_t)p[0]);"),
    # A look at a result of so many bytes that is complete now; only programs that a proof runs have it.
    "check": (1, "${p}_check(x[0], (size_t)p[0]);"),
    # A copy of rows that follow each other to rows that are apart: how many, where in these each begins, their pitch, the bytes of a row.
    "append": (
        2,
        "for (idx_t i = 0; i < p[0]; ++i) memmove(x[0] + p[1] + i * p[2], x[1] + i * p[3], (size_t)p[3]);",
    ),
    # A whole number, written as int64.
    "number": (1, "const int64_t number = p[0];\n    memcpy(x[0], &number, sizeof number);"),
    # A copy of a row of a whole to bytes of its own: the runs of bytes that a row is, the rows, the bytes of a run, whether rows count
    # from the last on, and whether the copy goes the other way. The third address has the number of the row as int64.
    "row": (3, _C["row"].rstrip("\n")),
}
"""The functions that are no kernels: how many addresses they have, and their texts, in which `p` are the numbers of a call."""


class _CallTable:
    """Turns calls into numbers; helpers are kernels of one function each, with numbers such as their bytes."""

    def __init__(
        self,
        kernels: Sequence[CKernel],
        numbers: Mapping[DistinctKernel, int],
        spaces: _Spaces,
    ) -> None:
        self._kernels = kernels
        self._numbers = numbers
        self._spaces = spaces
        self._helpers: dict[tuple[str, tuple[OpenNumber, ...]], int] = {}

    @property
    def helpers(self) -> list[str]:
        """The functions in use that are no kernels, in the order of their numbers."""
        return list(dict.fromkeys(kind for kind, _ in self._helpers))

    @property
    def transfers(self) -> int:
        """How many copies run beside kernels."""
        return sum(kind == "start" for kind, _ in self._helpers)

    @property
    def helper_kernels(self) -> list[CKernel]:
        first = len({kernel.function for kernel in self._kernels})
        numbers = {kind: first + number for number, kind in enumerate(self.helpers)}
        return [CKernel(numbers[kind], own_numbers, ()) for kind, own_numbers in self._helpers]

    def entry(self, call: ProgramCall) -> TableEntry:
        if isinstance(call, Branch | RepeatedCalls):
            return call.changed(self._spaces.operand, lambda calls: map(self.entry, calls))
        if isinstance(call, KernelCall):
            kernel = self._numbers[call.kernel]
            operands = (self._spaces.operand(call.addresses[operand]) for operand in self._kernels[kernel].arguments)
            return TableCall(kernel, tuple(operands))
        if isinstance(call, CopyCall):
            return self._helper_call("copy", (call.size,), (call.target, call.source))
        return self._helper_call(call.helper, call.numbers, call.addresses)

    def _helper_call(self, helper: str, numbers: tuple[OpenNumber, ...], addresses: Iterable[ByteAddress]) -> TableCall:
        kernel = len(self._kernels) + self._helpers.setdefault((helper, numbers), len(self._helpers))
        return TableCall(kernel, tuple(map(self._spaces.operand, addresses)))


def _rows_declared(port: StreamPort, function: str) -> str:
    """Return the declaration of the user's function that gives rows of an input, and what it has to do."""
    sizes, ctype = [*map(str, port.tensor.sizes)], ctype_of(port)
    some = [*sizes[: port.axis], "count", *sizes[port.axis + 1 :]]
    return (
        f"/* input {comment(port.name)}: {ctype}, {'x'.join(sizes)}, which comes row by row along its axis {port.axis}.\n"
        f" * Define this function: it writes the rows from `first` on, `count` of them, to `target`, as an array of {'x'.join(some)}.\n"
        " * A run calls it in the order of the rows, for each row once at most. */\n"
        f"void {function}({ctype} *target, size_t first, size_t count);"
    )


def _helper_function(name: str, kind: str, operands: int, text: str) -> CFunction:
    lines = [
        f"static void {name}_kernel_{kind}(const idx_t *p, uint8_t *const *x) {{",
        f"    {filled(text, name)}",
        "}",
    ]
    declared = [f"void {name}_check(uint8_t *at, size_t size);"] if kind == "check" else []
    return CFunction("\n".join([*declared, *lines, ""]), operands)


def _kernel_rows(
    kernels: Iterable[CKernel], functions: Sequence[CFunction], computed: dict[OpenNumber, int] | None
) -> tuple[bytes, list[int]]:
    """Return a row of bytes for each kernel, and where each begins: its function, its operands, and its numbers after their count.

    Over ranges, a number is twice it, or 1 and twice the place in `computed`, which has all numbers that a run computes at its start.
    """

    def encoded(number: OpenNumber) -> int:
        if computed is None:
            assert isinstance(number, int)
            return number
        if isinstance(number, int) and number < _LARGE:
            return 2 * number
        return 2 * computed.setdefault(number, len(computed)) + 1

    data, starts = bytearray(), []
    for kernel in kernels:
        starts.append(len(data))
        head = (kernel.function, functions[kernel.function].operands, len(kernel.numbers))
        data += b"".join(map(grouped, (*head, *map(encoded, kernel.numbers))))
    return bytes(data), starts


_LARGE = 1 << 31
"""One more than a number of a program over ranges may be in a table, where it is doubled."""
_COMPUTED = "number & 1u ? ${p}_sizes[number >> 1] : (idx_t)(number >> 1)"


def _head(title: str, name: str, head: str) -> str:
    head = re.sub(r"^/\*.*?\*/\n", "", head, count=1, flags=re.DOTALL).strip()
    head = head.replace("#include <string.h>\n", "").replace("#include <stdint.h>\n", "")
    head = head or NO_KERNELS.strip()
    return f"{filled(_C['head'], name, title=title)}\n{head}\n"


def _wrapped(texts: Iterable[str], width: int = 118) -> Iterator[str]:
    line = "   "
    for text in texts:
        if len(line) + len(text) + 2 > width:
            yield line
            line = "   "
        line += f" {text},"
    yield line


def _bytes(name: str, ctype: str, numbers: Iterable[int]) -> Iterator[str]:
    yield f"static const {ctype} {name}[] = {{"
    yield from _wrapped([str(number) for number in numbers] or ["0"])
    yield "};"


def _weights(weights: FlashWeights, name: str) -> Iterator[str]:
    """Yield the constants, as words of each size."""
    for size, block in weights.blocks.items():
        words: list[int] = np.frombuffer(block, f"<u{size}").tolist()
        yield f"{name.upper()}_WEIGHTS_SECTION static const uint{size * 8}_t {name}_weights_{size * 8}[] = {{"
        suffix = "ull" if size == 8 else "u" if size == 4 else ""
        yield from _wrapped(f"{word}{suffix}" for word in words) if len(words) else ("    0,",)
        yield "};"


def _memory(arenas: Iterable[tuple[str, str, int]], name: str, workspace: int) -> Iterator[str]:
    for _, variable, _ in arenas:
        upper = variable.upper()
        yield f"#ifdef {upper}_EXTERN"
        yield f"uint8_t *{variable};"
        yield "#else"
        yield f"{upper}_SECTION {name.upper()}_ALIGNED uint8_t {variable}[{upper}_SIZE + ({upper}_SIZE == 0)];"
        yield "#endif"
    if workspace:
        yield f"{name.upper()}_WORKSPACE_SECTION {name.upper()}_ALIGNED static uint8_t {name}_workspace[{name.upper()}_WORKSPACE_SIZE];"


def _repeat_texts(name: str, spaces: int, repeats: int) -> dict[str, str]:
    """Return the texts that only a program with repeats has."""
    texts = {"repeat": filled(_C["repeat"], name, spaces=spaces), "repeats": filled(_C["repeats"], name)}
    return {hole: text + "\n" if repeats else "" for hole, text in texts.items()}
