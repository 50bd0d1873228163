"""net.c and net.h: a program in C99, which compiles as C++ too, without allocation, input or output."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from onnxtile.firmware.calls import (
    SpaceOffset,
    TableBranch,
    TableCall,
    TableEntry,
    TableRepeat,
    depth,
    grouped,
    stream_of,
    units_of,
)
from onnxtile.firmware.kernels import CTYPES, NO_KERNELS, CFunction, CKernel, kernels_in_c
from onnxtile.firmware.program import (
    ARENA,
    CONSTANT,
    WORKSPACE,
    Branch,
    BytePlace,
    CopyCall,
    CProgram,
    DistinctKernel,
    KernelCall,
    PlainCall,
    Port,
    ProgramCall,
    RepeatedCalls,
    RowsCall,
    StartCall,
    StreamPort,
    WaitCall,
    flat,
    kernels_of,
)
from onnxtile.firmware.transfers import DECLARED, DEFINED
from onnxtile.firmware.weights import FlashWeights, placed
from onnxtile.report.c_header import comment, filled, identifier, identifiers
from onnxtile.system.dataclass import dataclass
from onnxtile.system.errors import about_options

_MOST_IN_CODE = 1 << 29
"""Bytes of weights in the text of C: each takes three of text, and a compiler many more."""


@dataclass(frozen=True)
class CSource:
    """The text of a program in C: net.c and net.h, and figures of it.

    `kernels` are the different kernels, `functions` the functions that run them, `calls` the calls of a run. `tables` are the bytes of the
    tables, `weights` those of the constants, `arena` and `workspace` those of memory. `checks` says whether it looks at its results.
    `weights_file` has the constants where they are in no text of C. `repeats` says how deep repeats are inside each other, `transfers` how
    many copies run beside kernels.
    """

    code: str
    header: str
    title: str
    name: str
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    arenas: tuple[tuple[str, str, int], ...]
    alignment: int
    kernels: int
    functions: int
    calls: int
    blocks: int
    tables: int
    weights: int
    workspace: int
    has_states: bool
    checks: bool
    port_names: dict[tuple[BytePlace, str], str]
    weights_file: bytes = b""
    repeats: int = 0
    transfers: int = 0
    streams: tuple[tuple[StreamPort, str], ...] = ()
    """The inputs that come row by row, each with the function of the user's that gives its rows."""

    def named(self, title: str) -> CSource:
        """Return the same program with another title. No name of a tensor is in the way: all of them come after the start."""
        name = prefix_of(title)

        def renamed(text: str) -> str:
            text_of_files = text.replace(f"{self.title}.", f"{comment(title)}.")  # names of files
            return text_of_files.replace(self.name.upper(), name.upper()).replace(self.name, name)

        arenas = tuple((arena, renamed(variable), size) for arena, variable, size in self.arenas)
        streams = tuple((port, renamed(function)) for port, function in self.streams)
        code, header = renamed(self.code), renamed(self.header)
        return replace(self, code=code, header=header, name=name, title=title, arenas=arenas, streams=streams)

    @staticmethod
    def ctype(port: Port | StreamPort) -> str:
        """Return the type in C of the elements of `port`."""
        return _ctype(port)


def written(program: CProgram, title: str, weights_in: str = "code") -> CSource:
    """Return `program` in C; all its names begin with `title`. Raises UsageError for a kernel that cannot be written.

    The weights are in the text, or with `weights_in` "file" in bytes of their own.
    """
    name = prefix_of(title)
    kernels = list(kernels_of(program.calls))
    in_c = kernels_in_c(kernels, f"{name}_kernel", _heavy(program))
    numbers = {kernel: place for place, kernel in enumerate(kernels)}
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
    streams = tuple(zip(program.streams, _stream_functions(program, name), strict=True))
    own_texts = _OWN | {f"rows_{number}": (1, _rows_text(*stream)) for number, stream in enumerate(streams)}
    functions = [*in_c.functions, *(_own_function(name, kind, *own_texts[kind]) for kind in table.own_functions)]
    described, starts = _kernel_rows([*in_c.kernels, *table.own_kernels], functions)
    arenas = tuple(
        (arena, macro, size) for (arena, size), macro in zip(program.arenas, _arena_names(program, name), strict=True)
    )
    ports = _port_names(program)
    largest = max((len(kernel.numbers) for kernel in (*in_c.kernels, *table.own_kernels)), default=0)
    code = [
        _head(title, name, in_c.head),
        *([f"const uint8_t *{name}_weights;"] if in_file else _weights(weights, name)),
        *_memory(arenas, name, program.workspace),
        *([filled(DEFINED, name.upper())] if table.transfers else []),
        *(function.text for function in functions),
        f"static void (*const {name}_functions[])(const idx_t *, uint8_t *const *) = {{",
        *_wrapped(
            f"{name}_kernel_{function_number}"
            for function_number in (*range(len(in_c.functions)), *table.own_functions)
        ),
        "};",
        *_bytes(f"{name}_kernels", "uint8_t", described),
        *_bytes(f"{name}_starts", "uint16_t" if max(starts, default=0) < 1 << 16 else "uint32_t", starts),
        *_bytes(f"{name}_calls", "uint8_t", stream.data),
        *_bytes(f"{name}_units", "uint8_t" if max(units) < 256 else "uint32_t", units),
        filled(
            _RUN,
            name,
            operands=str(max((function.operands for function in functions), default=1)),
            numbers=str(max(largest, 1)),
            spaces=str(spaces.count),
            **_repeat_texts(name, spaces.count, repeats),
        ),
        *_run(program, ports, spaces, arenas, name, weights if in_file else None, repeats),
        *_accessors(program, ports, arenas, name),
        *_reset(program, arenas, name),
    ]
    tables = (
        len(described) + len(starts) * (2 if max(starts, default=0) < 1 << 16 else 4) + len(stream.data) + len(units)
    )
    return CSource(
        "\n".join(code) + "\n",
        _header(
            program,
            ports,
            arenas,
            name,
            title,
            in_file,
            [_rows_declared(*stream) for stream in streams] + [filled(DECLARED, name.upper())] * bool(table.transfers),
        ),
        title,
        name,
        program.inputs,
        program.outputs,
        arenas,
        program.alignment,
        len(kernels),
        len(functions),
        sum(1 for _ in flat(program.calls)),
        stream.blocks,
        tables,
        weights.size,
        program.workspace,
        bool(program.resets),
        "check" in table.own_functions,
        {
            **{(port.place, "input"): own for port, own in zip(program.inputs, ports[0], strict=True)},
            **{(port.place, "output"): own for port, own in zip(program.outputs, ports[1], strict=True)},
        },
        weights.file if in_file else b"",
        repeats,
        table.transfers,
        streams,
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
            places = [call.places[name] for name in kernels[numbers[call.kernel]].arguments]
        else:
            copy = call.copy if isinstance(call, StartCall) else call
            places = [copy.source] if isinstance(copy, CopyCall) else []
        numbers_in_use.update((place.number, None) for place in places if place.kind == CONSTANT)
    return sorted(numbers_in_use)


def prefix_of(title: str) -> str:
    """Return the start of all names in C: `title` in lower case, or "net_" and it where it begins with a digit or is a word of C."""
    name = identifier(title).lower()
    return f"net_{name}" if name[0].isdigit() or name in _KEYWORDS else name


_WORDS = """
asm auto bool break case catch char class const continue default delete do double else enum extern false float for friend goto if inline int
long namespace new operator private protected public register restrict return short signed sizeof static struct switch template this throw
true try typedef typename union unsigned using virtual void volatile while main
"""
_KEYWORDS = frozenset(_WORDS.split())


def _is_taken(name: str) -> bool:
    """Return whether an argument in C may not be called so: a word of C, a type, a macro, or a variable of the program."""
    return name[0].isdigit() or name in _KEYWORDS or name.endswith("_t") or name.isupper() or name == "bases"


def _port_names(program: CProgram) -> tuple[list[str], list[str]]:
    """Return the names in C of the inputs and of the outputs, all different."""
    names = identifiers([*(port.name for port in program.inputs), *(port.name for port in program.outputs)])
    names = [f"t_{name}" if _is_taken(name) else name for name in names]
    return names[: len(program.inputs)], names[len(program.inputs) :]


def _stream_functions(program: CProgram, name: str) -> list[str]:
    """Return the functions of the user's that give rows of inputs."""
    return [f"{name}_rows_{stream}" for stream in identifiers(stream.name for stream in program.streams)]


def _arena_names(program: CProgram, name: str) -> list[str]:
    """Return the variable of each arena: of one alone `net_arena`, of several `net_arena_sram`."""
    if len(program.arenas) == 1:
        return [f"{name}_arena"]
    return [f"{name}_arena_{arena_name}" for arena_name in identifiers(arena for arena, _ in program.arenas)]


class _Spaces:
    """The blocks of memory that operands may be in, by number: arenas, workspace, weights, arguments."""

    def __init__(self, program: CProgram, weights: FlashWeights) -> None:
        self._weights = weights
        self._numbers: dict[tuple[str, int], int] = {}
        for number in range(len(program.arenas)):
            self._add(ARENA, number)
        if program.workspace:
            self._add(WORKSPACE, 0)
        for size in weights.blocks:
            self._add(CONSTANT, size)
        for port in (*program.inputs, *program.outputs):
            if port.is_argument:
                self._add(port.place.kind, port.place.number)

    def _add(self, kind: str, number: int) -> None:
        self._numbers[kind, number] = len(self._numbers)

    @property
    def count(self) -> int:
        return max(1, len(self._numbers))

    def items(self) -> Iterable[tuple[tuple[str, int], int]]:
        return self._numbers.items()

    def operand(self, place: BytePlace) -> SpaceOffset:
        if place.kind == CONSTANT:
            size, start = self._weights.places[place.number]
            return SpaceOffset(self._numbers[CONSTANT, size], start + place.offset)
        return SpaceOffset(self._numbers[place.kind, place.number], place.offset)


_OWN = {
    "copy": (2, "memmove(x[0], x[1], (size_t)p[0]);"),
    "start": (2, "${p}_copy((uint32_t)p[0], x[0], x[1], (size_t)p[1]);"),
    "wait": (0, "(void)x;\n    ${p}_wait((uint32_t)p[0]);"),
    "check": (1, "${p}_check(x[0], (size_t)p[0]);"),
}
"""The functions that are no kernels: their operands, and their text. A copy of bytes, the start of one beside kernels, its end, a look."""


class _CallTable:
    """Turns calls into numbers; copies, and looks at results, are kernels of one function each, with numbers such as their bytes."""

    def __init__(self, kernels: Sequence[CKernel], numbers: Mapping[DistinctKernel, int], spaces: _Spaces) -> None:
        self._kernels = kernels
        self._numbers = numbers
        self._spaces = spaces
        self._own: dict[tuple[str, tuple[int, ...]], int] = {}

    @property
    def own_functions(self) -> list[str]:
        """The functions in use that are no kernels, in the order of their numbers."""
        return list(dict.fromkeys(kind for kind, _ in self._own))

    @property
    def transfers(self) -> int:
        """How many copies run beside kernels."""
        return sum(kind == "start" for kind, _ in self._own)

    @property
    def own_kernels(self) -> list[CKernel]:
        first = len({kernel.function for kernel in self._kernels})
        numbers = {kind: first + number for number, kind in enumerate(self.own_functions)}
        return [CKernel(numbers[kind], own_numbers, ()) for kind, own_numbers in self._own]

    def entry(self, call: ProgramCall) -> TableEntry:
        if isinstance(call, Branch):
            then, other = (tuple(map(self.entry, side)) for side in (call.then, call.otherwise))
            return TableBranch(self._spaces.operand(call.condition), then, other)
        if isinstance(call, RepeatedCalls):
            most, number = (
                None if place is None else self._spaces.operand(place) for place in (call.most, call.number)
            )
            return TableRepeat(most, self._spaces.operand(call.goes_on), number, tuple(map(self.entry, call.turn)))
        return self.call(call)

    def call(self, call: PlainCall) -> TableCall:
        if isinstance(call, KernelCall):
            kernel = self._numbers[call.kernel]
            operands = (self._spaces.operand(call.places[operand]) for operand in self._kernels[kernel].arguments)
            return TableCall(kernel, tuple(operands))
        if isinstance(call, CopyCall):
            return self._own_call("copy", (call.size,), (call.target, call.source), call.steps)
        if isinstance(call, StartCall):
            return self._own_call("start", (call.number, call.copy.size), (call.copy.target, call.copy.source))
        if isinstance(call, WaitCall):
            return self._own_call("wait", (call.number,))
        if isinstance(call, RowsCall):
            return self._own_call(f"rows_{call.number}", (call.first, call.count), (call.target,))
        return self._own_call("check", (call.size,), (call.place,))

    def _own_call(
        self, kind: str, numbers: tuple[int, ...], places: Iterable[BytePlace] = (), steps: tuple[int, ...] = ()
    ) -> TableCall:
        kernel = len(self._kernels) + self._own.setdefault((kind, numbers), len(self._own))
        return TableCall(kernel, tuple(map(self._spaces.operand, places)), steps)


def _rows_text(port: StreamPort, function: str) -> str:
    return f"{function}(({_ctype(port)} *)x[0], (size_t)p[0], (size_t)p[1]);"


def _rows_declared(port: StreamPort, function: str) -> str:
    """Return the declaration of the user's function that gives rows of an input, and what it has to do."""
    sizes, ctype = [*map(str, port.tensor.sizes)], _ctype(port)
    some = [*sizes[: port.axis], "count", *sizes[port.axis + 1 :]]
    return (
        f"/* input {comment(port.name)}: {ctype}, {'x'.join(sizes)}, which comes row by row along its axis {port.axis}.\n"
        f" * Define this function: it writes the rows from `first` on, `count` of them, to `target`, as an array of {'x'.join(some)}.\n"
        " * A run calls it in the order of the rows, for each row once at most. */\n"
        f"void {function}({ctype} *target, size_t first, size_t count);"
    )


def _own_function(name: str, kind: str, operands: int, text: str) -> CFunction:
    lines = [
        f"static void {name}_kernel_{kind}(const idx_t *p, uint8_t *const *x) {{",
        f"    {filled(text, name)}",
        "}",
    ]
    declared = [f"void {name}_check(uint8_t *at, size_t size);"] if kind == "check" else []
    return CFunction("\n".join([*declared, *lines, ""]), operands)


def _kernel_rows(kernels: Iterable[CKernel], functions: Sequence[CFunction]) -> tuple[bytes, list[int]]:
    """Return a row of bytes for each kernel, and where each begins: its function, its operands, and its numbers after their count."""
    data, starts = bytearray(), []
    for kernel in kernels:
        starts.append(len(data))
        head = (kernel.function, functions[kernel.function].operands, len(kernel.numbers))
        data += b"".join(map(grouped, (*head, *kernel.numbers)))
    return bytes(data), starts


_HEAD = """\
/* A model in C, in the memory that onnxtile planned. Kernels by emx-onnx-cgen and onnxtile. Generated: do not edit. */
#include "${title}.h"

#include <string.h>
"""


def _head(title: str, name: str, head: str) -> str:
    head = re.sub(r"^/\*.*?\*/\n", "", head, count=1, flags=re.DOTALL).strip()
    head = head.replace("#include <string.h>\n", "").replace("#include <stdint.h>\n", "")
    head = head or NO_KERNELS.strip()
    return f"{filled(_HEAD, name, title=title)}\n{head}\n"


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


_RUN = """\

static uint32_t ${p}_number(const uint8_t **at) {
    uint32_t value = 0, shift = 0;
    for (;; shift += 7) {
        const uint8_t byte = *(*at)++;
        value |= (uint32_t)(byte & 127u) << shift;
        if (byte < 128u) return value;
    }
}

static const uint8_t *${p}_call(const uint8_t *at, uint8_t *const *bases, uint32_t turn, uint32_t turns) {
    const uint8_t *kernel = ${p}_kernels + ${p}_starts[${p}_number(&at)];
    const uint32_t function = ${p}_number(&kernel), operands = ${p}_number(&kernel), numbers = ${p}_number(&kernel);
    uint8_t *x[${operands}];
    idx_t p[${numbers}];
    for (uint32_t i = 0; i < numbers; ++i) p[i] = (idx_t)${p}_number(&kernel);
    for (uint32_t i = 0; i < operands; ++i) {
        uint32_t code = ${p}_number(&at), advance = 0;
        if (turns > 1u) {
            if (code & 1u) {
                advance = ${p}_number(&at);
                advance = advance & 1u ? 0u - (advance >> 1) - 1u : advance >> 1; /* modulo 2^32, as is the sum */
            }
            code >>= 1;
        }
        x[i] = bases[code % ${spaces}u] + (uint32_t)(code / ${spaces}u + advance * turn) * (size_t)${p}_units[code % ${spaces}u];
    }
    ${p}_functions[function](p, x);
    return at;
}

${repeat}static void ${p}_walk(const uint8_t *at, uint8_t *const *bases${argument}) {
    for (uint32_t code; (code = ${p}_number(&at)) != 0u;) {
${repeats}        if (code & 1u) { /* 1 skips where a condition is not met, 3 always */
            const uint32_t condition = code == 1u ? ${p}_number(&at) : 0u, length = ${p}_number(&at);
            const size_t offset = condition / ${spaces}u * (size_t)${p}_units[condition % ${spaces}u];
            if (code == 3u || !bases[condition % ${spaces}u][offset]) at += length;
            continue;
        }
        const uint32_t turns = code >> 1, calls = ${p}_number(&at);
        const uint8_t *start = at;
        for (uint32_t turn = 0; turn < turns; ++turn) {
            at = start;
            for (uint32_t i = 0; i < calls; ++i) at = ${p}_call(at, bases, turn, turns);
        }
    }
}
"""
_REPEAT = """\

static void ${p}_walk(const uint8_t *at, uint8_t *const *bases, uint32_t turn_of_repeat);

static uint8_t *${p}_place(const uint8_t **at, uint8_t *const *bases) {
    const uint32_t code = ${p}_number(at) - 1u;
    if (code == UINT32_MAX) return NULL;
    return bases[code % ${spaces}u] + code / ${spaces}u * (size_t)${p}_units[code % ${spaces}u];
}

static const uint8_t *${p}_repeat(const uint8_t *at, uint8_t *const *bases) {
    const uint8_t *const most = ${p}_place(&at, bases), *const goes_on = ${p}_place(&at, bases);
    uint8_t *const number = ${p}_place(&at, bases);
    const uint32_t length = ${p}_number(&at);
    int64_t limit = INT64_MAX;
    if (most) memcpy(&limit, most, sizeof limit);
    for (int64_t turn = 0; turn < limit && *goes_on; ++turn) {
        if (number) memcpy(number, &turn, sizeof turn);
        ${p}_walk(at, bases, (uint32_t)turn);
    }
    return at + length;
}

"""
_REPEATS = """\
        if (code == 5u) {
            at = ${p}_repeat(at, bases);
            continue;
        }
        if (code == 7u) {
            at = ${p}_call(at, bases, turn_of_repeat, 2u);
            continue;
        }
"""


def _repeat_texts(name: str, spaces: int, repeats: int) -> dict[str, str]:
    """Return the texts that only a program with repeats has."""
    if not repeats:
        return {"repeat": "", "repeats": "", "argument": ""}
    texts = {"repeat": filled(_REPEAT, name, spaces=spaces), "repeats": filled(_REPEATS, name)}
    return {**{hole: text + "\n" for hole, text in texts.items()}, "argument": ", uint32_t turn_of_repeat"}


def _signature(program: CProgram, ports: tuple[list[str], list[str]], name: str) -> str:
    given = [
        f"const {_ctype(port)} *{own}" for port, own in zip(program.inputs, ports[0], strict=True) if port.is_argument
    ]
    given += [f"{_ctype(port)} *{own}" for port, own in zip(program.outputs, ports[1], strict=True) if port.is_argument]
    return f"void {name}_run({', '.join(given) or 'void'})"


def _ctype(port: Port | StreamPort) -> str:
    return CTYPES.get(port.tensor.dtype, "uint8_t")


def _run(
    program: CProgram,
    ports: tuple[list[str], list[str]],
    spaces: _Spaces,
    arenas: Sequence[tuple[str, str, int]],
    name: str,
    file: FlashWeights | None,
    repeats: int,
) -> Iterator[str]:
    names = {
        port.place: own for port, own in zip((*program.inputs, *program.outputs), (*ports[0], *ports[1]), strict=True)
    }
    yield f"{_signature(program, ports, name)} {{"
    yield f"    uint8_t *bases[{spaces.count}];"
    for (kind, number), index in spaces.items():
        base = names.get(BytePlace(kind, number), "")
        if kind == ARENA:
            base = arenas[number][1]
        elif kind == WORKSPACE:
            base = f"{name}_workspace"
        elif kind == CONSTANT:
            base = f"{name}_weights_{number * 8}" if file is None else f"({name}_weights + {file.start(number)}u)"
        yield f"    bases[{index}] = {base if kind in {ARENA, WORKSPACE} else f'(uint8_t *){base}'};"
    yield f"    {name}_walk({name}_calls, bases{', 0u' if repeats else ''});"
    yield "}"


def _accessors(
    program: CProgram, ports: tuple[list[str], list[str]], arenas: Sequence[tuple[str, str, int]], name: str
) -> Iterator[str]:
    for kind, held, own in (("input", program.inputs, ports[0]), ("output", program.outputs, ports[1])):
        for port, port_name in zip(held, own, strict=True):
            if not port.is_argument:
                ctype = _ctype(port)
                address = f"{arenas[port.place.number][1]} + {port.place.offset}"
                yield f"{ctype} *{name}_{kind}_{port_name}(void) {{ return ({ctype} *)({address}); }}"


def _reset(program: CProgram, arenas: Sequence[tuple[str, str, int]], name: str) -> Iterator[str]:
    if program.resets:
        yield f"void {name}_reset(void) {{"
        yield from (
            f"    memset({arenas[place.number][1]} + {place.offset}, 0, {size});" for place, size in program.resets
        )
        yield "}"


_HEADER = """\
/* ${title}: a model in C, in the memory that onnxtile planned. Generated: do not edit. */
#ifndef ${P}_H
#define ${P}_H

#include <stddef.h>
#include <stdint.h>
#ifndef __cplusplus
#include <stdbool.h>
#endif

#if defined(__GNUC__)
#define ${P}_ALIGNED __attribute__((aligned(${alignment})))
#elif defined(_MSC_VER)
#define ${P}_ALIGNED __declspec(align(${alignment}))
#else
#define ${P}_ALIGNED
#endif
#ifndef ${P}_WEIGHTS_SECTION
#define ${P}_WEIGHTS_SECTION /* such as __attribute__((section(".rodata.weights"))) */
#endif
"""


def _header(
    program: CProgram,
    ports: tuple[list[str], list[str]],
    arenas: Sequence[tuple[str, str, int]],
    name: str,
    title: str,
    in_file: int,
    more: Sequence[str],
) -> str:
    upper = name.upper()
    alignment = max(program.alignment, 8)  # that of the largest element
    lines = [filled(_HEADER, upper, title=comment(title), alignment=str(alignment))]
    for arena, variable, size in arenas:
        lines += [f"#define {variable.upper()}_SIZE {size}u /* bytes of the memory {comment(arena)} */"]
        lines += [f"#ifndef {variable.upper()}_SECTION", f"#define {variable.upper()}_SECTION", "#endif"]
    if program.workspace:
        lines += [f"#define {upper}_WORKSPACE_SIZE {program.workspace}u /* bytes of temporaries of kernels */"]
        lines += [f"#ifndef {upper}_WORKSPACE_SECTION", f"#define {upper}_WORKSPACE_SECTION", "#endif"]
    lines += ["", "#ifdef __cplusplus", 'extern "C" {', "#endif", ""]
    for _, variable, _ in arenas:
        lines += [f"#ifdef {variable.upper()}_EXTERN"]
        lines += [
            f"extern uint8_t *{variable}; /* give it {variable.upper()}_SIZE bytes, aligned to {alignment}, before a run */"
        ]
        lines += ["#else", f"extern uint8_t {variable}[];", "#endif"]
    if in_file:
        lines += [f"#define {upper}_WEIGHTS_SIZE {in_file}u /* bytes of {comment(title)}.weights.bin, little-endian */"]
        lines += [f"extern const uint8_t *{name}_weights; /* give it these bytes, aligned to 8, before a run */"]
    for kind, held, own in (("input", program.inputs, ports[0]), ("output", program.outputs, ports[1])):
        for port, port_name in zip(held, own, strict=True):
            sizes = "x".join(map(str, port.tensor.sizes)) or "one number"
            described = f"/* {kind} {comment(port.name)}: {_ctype(port)}, {sizes} */"
            lines += [described]
            if not port.is_argument:
                lines += [f"{_ctype(port)} *{name}_{kind}_{port_name}(void);"]
    lines += more
    if program.resets:
        lines += [f"void {name}_reset(void); /* before the first run: states are zero */"]
    lines += [f"{_signature(program, ports, name)};", "", "#ifdef __cplusplus", "}", "#endif", "", "#endif", ""]
    return "\n".join(lines)
