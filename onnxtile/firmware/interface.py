"""What the users of a program in C see of it: names, the header, and the functions that they call."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from onnxtile.firmware.kernels import CTYPES
from onnxtile.firmware.program import ByteAddress, CProgram, OpenNumber, OpenSize, Port, StreamPort
from onnxtile.report.format import c_texts
from onnxtile.report.formats.to_header import comment, filled, identifier, identifiers
from onnxtile.system.dataclass import dataclass

_C = c_texts("onnxtile.firmware", "program.c")
"""Texts in C, by name."""


@dataclass(frozen=True)
class Interface:
    """What a program takes, gives and keeps, with the names in C; all of these begin with `name`, but for arguments of a run.

    `arenas` are the memories, each with its variable and its bytes. `streams` are the inputs that come row by row, each with the function
    of the user's that gives its rows. `resets` are the bytes of states. `inputs` and `outputs` are ports, `sizes` dimensions with a range,
    each with its name in C.
    """

    name: str
    inputs: tuple[tuple[Port, str], ...]
    outputs: tuple[tuple[Port, str], ...]
    sizes: tuple[tuple[OpenSize, str], ...]
    arenas: tuple[tuple[str, str, int], ...]
    streams: tuple[tuple[StreamPort, str], ...]
    resets: tuple[tuple[ByteAddress, int], ...]

    @classmethod
    def from_program(cls, program: CProgram, name: str) -> Interface:
        """Return the interface of `program`, whose names begin with `name`."""
        inputs, outputs = [port.name for port in program.inputs], [port.name for port in program.outputs]
        names = identifiers([*inputs, *outputs, *(size.name.lower() for size in program.sizes)])
        in_c = iter([f"t_{word}" if _is_taken(word) else word for word in names])
        streams = [f"{name}_rows_{stream}" for stream in identifiers(stream.name for stream in program.streams)]
        return cls(
            name,
            tuple(zip(program.inputs, in_c, strict=False)),
            tuple(zip(program.outputs, in_c, strict=False)),
            tuple(zip(program.sizes, in_c, strict=False)),
            tuple(
                (arena, variable, size)
                for (arena, size), variable in zip(program.arenas, _arenas(program, name), strict=True)
            ),
            tuple(zip(program.streams, streams, strict=True)),
            program.resets,
        )

    @property
    def taken_sizes(self) -> tuple[tuple[OpenSize, str], ...]:
        """The sizes that are arguments of a run."""
        return tuple((size, in_c) for size, in_c in self.sizes if size.step is None)

    @property
    def kept_lengths(self) -> tuple[tuple[OpenSize, str], ...]:
        """The lengths of states that grow, with their variables."""
        return tuple((size, f"{self.name}_length_{in_c}") for size, in_c in self.sizes if size.step is not None)

    @property
    def signature(self) -> str:
        """The declaration of a run, without its end."""
        arguments = [f"uint32_t {in_c}" for _, in_c in self.taken_sizes]
        arguments += [f"const {ctype_of(port)} *{in_c}" for port, in_c in self.inputs if port.is_argument]
        arguments += [f"{ctype_of(port)} *{in_c}" for port, in_c in self.outputs if port.is_argument]
        return f"{'int' if self.sizes else 'void'} {self.name}_run({', '.join(arguments) or 'void'})"


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


def _arenas(program: CProgram, name: str) -> list[str]:
    """Return the variable of each arena: of one alone `net_arena`, of several `net_arena_sram`."""
    if len(program.arenas) == 1:
        return [f"{name}_arena"]
    return [f"{name}_arena_{arena_name}" for arena_name in identifiers(arena for arena, _ in program.arenas)]


def ctype_of(port: Port | StreamPort) -> str:
    """Return the type in C of the elements of `port`."""
    return CTYPES.get(port.tensor.dtype, "uint8_t")


# Functions that users call, and what they need.


def size_variables(interface: Interface, count: int) -> Iterator[str]:
    """Yield the variables of a program over ranges: the `count` numbers that a run computes of the sizes, and the lengths of states."""
    if interface.sizes:
        yield f"static idx_t {interface.name}_sizes[{max(count, 1)}];"
    for length, variable in interface.kept_lengths:
        yield f"uint32_t {variable} = {length.least}u;"


def run_text(interface: Interface, bases: Sequence[str], computed: Iterable[OpenNumber]) -> Iterator[str]:
    """Yield the function of a run: `bases` are the addresses of all blocks of memory, `computed` the numbers of the sizes."""
    name = interface.name
    in_c = {size.name: variable for size, variable in (*interface.taken_sizes, *interface.kept_lengths)}
    yield f"{interface.signature} {{"
    for size, _ in interface.sizes:
        least = f"{in_c[size.name]} < {size.least}u || " if size.least else ""
        yield f"    if ({least}{in_c[size.name]} > {size.most}u) return 1;"
    for index, number in enumerate(computed):
        yield f"    {name}_sizes[{index}] = (idx_t)({f'{number}u' if isinstance(number, int) else number.in_c(in_c)});"
    yield f"    uint8_t *bases[{max(1, len(bases))}];"
    yield from (f"    bases[{index}] = {base};" for index, base in enumerate(bases))
    yield f"    {name}_walk({name}_calls, bases);"
    steps = [(variable, length.step) for length, variable in interface.kept_lengths if length.step is not None]
    yield from (f"    {variable} += {step.in_c(in_c)};" for variable, step in steps)
    yield from ["    return 0;"] if interface.sizes else []
    yield "}"


def accessors(interface: Interface) -> Iterator[str]:
    """Yield the functions that say where inputs and outputs in an arena are."""
    for kind, ports in (("input", interface.inputs), ("output", interface.outputs)):
        for port, in_c in ports:
            if not port.is_argument:
                address = f"{interface.arenas[port.address.number][1]} + {port.address.offset}"
                yield f"{_accessor(interface, kind, port, in_c)} {{ return ({ctype_of(port)} *)({address}); }}"


def _accessor(interface: Interface, kind: str, port: Port, in_c: str) -> str:
    return f"{ctype_of(port)} *{interface.name}_{kind}_{in_c}(void)"


def reset(interface: Interface) -> Iterator[str]:
    """Yield the function that sets the states to what they are before the first run."""
    if interface.resets:
        yield f"void {interface.name}_reset(void) {{"
        for at, size in interface.resets:
            yield f"    memset({interface.arenas[at.number][1]} + {at.offset}, 0, {size});"
        yield from (f"    {variable} = {length.least}u;" for length, variable in interface.kept_lengths)
        yield "}"


# The header.


def _sizes_text(port: Port) -> str:
    """Return the sizes of an input or output for a reader, as formulas over ranges."""
    sizes = port.formulas or tuple(map(str, port.tensor.sizes))
    text = comment("x".join(size if size.isalnum() else f"({size})" for size in sizes)) or "one number"
    return text if port.rows == 1 else f"{text}: {port.rows} rows, which begin {port.pitch} bytes apart"


def _declared_sizes(interface: Interface) -> Iterator[str]:
    """Yield the limits of the sizes, and the lengths of states that a program keeps."""
    for size, in_c in interface.sizes:
        limits = f"{interface.name}_{in_c}".upper()
        yield f"#define {limits}_LEAST {size.least}u"
        yield f"#define {limits}_MOST {size.most}u"
    for length, variable in interface.kept_lengths:
        yield f"extern uint32_t {variable}; /* {comment(length.name)}: elements of states; each run adds to them */"


def header_text(
    interface: Interface, title: str, alignment: int, workspace: int, in_file: int, more: Sequence[str]
) -> str:
    """Return the header of a program, with the declarations `more`; `in_file` are the bytes of weights in a file of their own."""
    name = interface.name
    upper = name.upper()
    alignment = max(alignment, 8)  # that of the largest element
    lines = [filled(_C["header"], upper, title=comment(title), alignment=str(alignment))]
    for arena, variable, size in interface.arenas:
        lines += [f"#define {variable.upper()}_SIZE {size}u /* bytes of the memory {comment(arena)} */"]
        lines += [f"#ifndef {variable.upper()}_SECTION", f"#define {variable.upper()}_SECTION", "#endif"]
    if workspace:
        lines += [f"#define {upper}_WORKSPACE_SIZE {workspace}u /* bytes of temporaries of kernels */"]
        lines += [f"#ifndef {upper}_WORKSPACE_SECTION", f"#define {upper}_WORKSPACE_SECTION", "#endif"]
    lines += ["", "#ifdef __cplusplus", 'extern "C" {', "#endif", ""]
    for _, variable, _ in interface.arenas:
        lines += [f"#ifdef {variable.upper()}_EXTERN"]
        lines += [
            f"extern uint8_t *{variable}; /* give it {variable.upper()}_SIZE bytes, aligned to {alignment}, before a run */"
        ]
        lines += ["#else", f"extern uint8_t {variable}[];", "#endif"]
    if in_file:
        lines += [f"#define {upper}_WEIGHTS_SIZE {in_file}u /* bytes of {comment(title)}.weights.bin, little-endian */"]
        lines += [f"extern const uint8_t *{name}_weights; /* give it these bytes, aligned to 8, before a run */"]
    for kind, ports in (("input", interface.inputs), ("output", interface.outputs)):
        for port, in_c in ports:
            lines += [f"/* {kind} {comment(port.name)}: {ctype_of(port)}, {_sizes_text(port)} */"]
            lines += [] if port.is_argument else [f"{_accessor(interface, kind, port, in_c)};"]
    lines += more
    lines += _declared_sizes(interface)
    if interface.resets:
        lines += [f"void {name}_reset(void); /* before the first run: states are zero */"]
    if interface.sizes:
        lines += ["/* Returns 0; 1 where a size is out of its range, and then nothing has run. */"]
    lines += [f"{interface.signature};", "", "#ifdef __cplusplus", "}", "#endif", "", "#endif", ""]
    return "\n".join(lines)
