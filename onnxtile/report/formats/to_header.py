"""The plan as a C header (C99 and C++11): arena sizes, offset and size of each tensor, static assertions, and the tables to run it.

An enumerator for each tensor is its index in the table of tensors. The table of nodes has the nodes in order, with their operators,
attributes, operands and results.

Every macro begins with the name of the file, so that the headers of several models go together. Numbers are unsigned literals
without casts, so that the preprocessor can compare them.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate, chain, count
from math import prod
from string import Template
from typing import Any, TypeAlias

from onnxtile.model.formula import read_size
from onnxtile.report.format import Format, PlanJson, RenderOptions, c_texts
from onnxtile.report.layout import arenas, rows_with_bodies, runs
from onnxtile.report.words import is_kept, tensor_type
from onnxtile.system.dataclass import dataclass

_C = c_texts("onnxtile.report", "header.h")
"""Texts in C, by name."""


def _write(plan: PlanJson, options: RenderOptions) -> bytes:
    prefix = identifier(options.title).upper()
    prefix = f"PLAN_{prefix}" if prefix[0].isdigit() else prefix
    table = run_table(plan)
    tensors = identifiers(value.name for value in table.values)
    rows, names = table.values[: table.planned], [f"{prefix}_T_{name}" for name in tensors[: table.planned]]
    layouts = arenas(plan)
    blocks = dict(zip((a.name for a in layouts), identifiers(_block(a.name) for a in layouts), strict=True))
    blocks = {name: f"{prefix}_ARENA_{block}" for name, block in blocks.items()}
    alignment = plan.get("alignment") or 1
    units = [_unit(value, alignment) for value in rows]
    widest = max((alignment, *units))
    lines = [*_head(plan, prefix), *_arenas(plan, prefix, blocks, widest), *_tensor_rows(table, names)]
    lines += _range_macros(plan, table, names, prefix)
    lines += [*_constants(table, tensors, prefix), *tables(table, tensors, blocks, prefix)]
    lines += _tensors_at(plan, table, tensors, prefix)
    lines += _assertions(rows, names, units, blocks, prefix)
    return "\n".join([*lines, "", f"#endif  /* {prefix}_H */", ""]).encode()


def _unit(value: TableValue, alignment: int) -> int:
    """Return the alignment of `value` in bytes: that of its element, and for an owner of bytes at least that of the plan."""
    element = max(element_bits(value) // 8, 1)
    return element if value.alias is not None else max(element, alignment)


def _block(arena: str) -> str:
    """Return the name of an arena in macros, which differs from all other macros, also with _SIZE after it."""
    name = identifier(arena).upper()
    return f"{name}_ARENA" if name == "COUNT" or name.split("_")[-1] == "SIZE" else name


def _head(plan: PlanJson, prefix: str) -> Iterator[str]:
    yield "/* Addresses of all tensors of a model, planned by onnxtile. Sizes and offsets are bytes."
    if plan.get("model"):
        yield f" * Model: {comment(plan['model'])}."
    yield f" * File: {'SHA-256 ' + plan['digest'] if plan.get('digest') else 'none'}."
    for given in plan.get("inputs") or ():
        yield f" * Input: {comment(given['name'])}, {comment(tensor_type(given))}."
    ranges = plan.get("ranges") or {}
    for name, size in (plan.get("dims") or {}).items():
        held = f"{ranges[name][0]} to {size}, offsets and sizes of {size}" if name in ranges else str(size)
        yield f" * {comment(name)} = {held}."
    for left in plan.get("unplanned", ()):
        yield f" * Without an address: {comment(left['name'])} ({comment(left['reason'])})."
    yield " */"
    yield filled(_C["language"], prefix)
    yield ""


def _arenas(plan: PlanJson, prefix: str, blocks: dict[str, str], alignment: int) -> Iterator[str]:
    yield "/* Arenas: blocks of memory to provide, each aligned. The macro of an arena is its number in the table. */"
    yield f"#define {prefix}_ALIGNMENT {alignment}u"
    yield f"#define {prefix}_ARENA_COUNT {len(blocks)}u"
    for number, layout in enumerate(arenas(plan)):
        yield f"#define {blocks[layout.name]} {number}u  /* {comment(layout.name)} */"
        yield f"#define {blocks[layout.name]}_SIZE {layout.size}u"
    if len(blocks) == 1 and not plan.get("ranges"):
        yield f"#define {prefix}_ARENA_SIZE {next(iter(blocks.values()))}_SIZE"


def _tensor_rows(table: RunTable, names: Iterable[str]) -> Iterator[str]:
    yield from ("", "/* Tensors. */")
    for value, name in zip(table.values, names, strict=False):
        yield f"#define {name}_OFFSET {value.offset}u  /* {comment(_described(value, table))} */"
        yield f"#define {name}_SIZE {value.size}u"


def _range_macros(plan: PlanJson, table: RunTable, names: list[str], prefix: str) -> Iterator[str]:
    """Yield the macros of a plan over ranges: sizes of arenas, and offsets and sizes of tensors, at given sizes of the dimensions."""
    ranges = plan.get("ranges") or {}
    if not ranges:
        return
    parameters = _parameters(plan)
    arguments = {name: f"((size_t)({parameter}))" for name, parameter in parameters.items()}
    head = f"({', '.join(parameters.values())})"

    def at(text: str) -> str:
        return _in_c(text, arguments)

    yield from (
        "",
        "/* At any sizes of the dimensions: bytes of an arena, and offset and size of each tensor in it. */",
    )
    several = len(plan["formulas"]) > 1
    for arena in plan["formulas"]:
        name = f"{prefix}_ARENA_{_block(arena['name'])}_SIZE_AT" if several else f"{prefix}_ARENA_SIZE"
        yield f"#define {name}{head} {at((arena['scaled'] or arena['fixed'])['bytes'])}"
    rows = {row["name"]: row for row in plan["buffers"]}
    for value, name in zip(table.values, names, strict=False):
        row = rows.get(value.name)
        if row is not None:
            yield f"#define {name}_OFFSET_AT{head} {at(row.get('scaled_offset') or str(row['offset']))}"
            yield f"#define {name}_SIZE_AT{head} {at(row.get('size_formula') or str(row['size']))}"


def _parameters(plan: PlanJson) -> dict[str, str]:
    """Return the parameters of macros and functions, by the dimension that has a range."""
    return dict(zip(plan["ranges"], identifiers(plan["ranges"]), strict=True))


def _in_c(text: str, arguments: dict[str, str]) -> str:
    formula = read_size(text, dict.fromkeys(arguments, (0, 0)))
    assert formula is not None
    return f"({formula.in_c(arguments)})"


def _tensors_at(plan: PlanJson, table: RunTable, names: list[str], prefix: str) -> Iterator[str]:
    """Yield the function that returns a tensor at given sizes of the dimensions, of a plan over ranges."""
    if not plan.get("ranges"):
        return
    low, parameters = prefix.lower(), _parameters(plan)
    ends = {row["name"]: row for key in ("outputs", "inputs") for row in plan.get(key) or ()}
    rows = ends | {row["name"]: row for row in plan["buffers"]}
    head = "".join(f", size_t {parameter}" for parameter in parameters.values())
    unused = " ".join(f"(void){parameter};" for parameter in parameters.values())
    cases = []
    for value, name in zip(table.values, names, strict=True):
        row = rows.get(value.name)
        if row is not None and (row.get("shape_formula") or row.get("scaled_offset")):
            statements = (f"        {low}_{line}" for line in _at_sizes(row, value, parameters))
            cases += [f"    case {prefix}_I_{name}:", *statements, "        break;"]
    yield filled(_C["at_sizes"], prefix, head=head, unused=unused, cases="".join(f"{line}\n" for line in cases))


def _at_sizes(row: PlanJson, value: TableValue, names: dict[str, str]) -> Iterator[str]:
    """Yield the statements that give the tensor `t` of `row` its figures at the sizes in the parameters `names`."""
    if row.get("scaled_offset"):
        yield f"t.offset = {_in_c(row['scaled_offset'], names)};"
    if row.get("size_formula"):
        yield f"t.size = {_in_c(row['size_formula'], names)};"
    elif value.block is None and value.size is None and (bits := element_bits(value)):
        size = "*".join(f"(size_t){_in_c(text, names)}" for text in row["shape_formula"]) or "1u"
        yield f"t.size = ({size}*{bits}u + 7u) / 8u;"
    for axis, text in enumerate(row.get("shape_formula") or ()):
        yield f"t.shape[{axis}] = {_in_c(text, names)};"
    if row.get("strides"):
        yield "is_plain = 0;"
        for axis, text in enumerate(row.get("strides_formula") or map(str, row["strides"])):
            yield f"t.strides[{axis}] = {_in_c(text, names)} / {element_bytes(row)}u;"
    elif not row.get("shape_formula"):
        yield "is_plain = 0;"


def _constants(table: RunTable, names: list[str], prefix: str) -> Iterator[str]:
    """Yield the number and the size of the block of constants, and the macros of the constants that have offsets in it."""
    placed = [
        (value, name)
        for value, name in zip(table.values, names, strict=True)
        if value.kind == "constant" and value.offset is not None
    ]
    end = max(((value.offset or 0) + (value.size or 0) for value, _ in placed), default=0)
    yield from ("", "/* Constants: a block of their own, which follows the arenas. */")
    yield f"#define {prefix}_CONSTANTS {prefix}_ARENA_COUNT"
    yield f"#define {prefix}_CONSTANTS_SIZE {end}u"
    yield f"#define {prefix}_OUTSIDE ({prefix}_ARENA_COUNT + 1u)  /* the number for tensors without an address */"
    for value, name in placed:
        yield f"#define {prefix}_C_{name}_OFFSET {value.offset}u  /* {comment(value.name)} */"
        yield f"#define {prefix}_C_{name}_SIZE {value.size or 0}u"


def _assertions(
    rows: Iterable[TableValue], names: list[str], units: list[int], blocks: dict[str, str], prefix: str
) -> Iterator[str]:
    """Yield that each tensor is inside its arena, and at a multiple of its unit."""
    yield ""
    for block in blocks.values():
        yield f"{prefix}_ASSERT({block}_SIZE <= SIZE_MAX, {block}_fits_the_address_space);"
    for row, name, unit in zip(rows, names, units, strict=True):
        arena = f"{blocks[row.block or '']}_SIZE"
        inside = (
            f"{name}_SIZE <= {arena} && {name}_OFFSET <= {arena} - {name}_SIZE"  # without a sum that could overflow
        )
        yield f"{prefix}_ASSERT({inside}, {name}_is_inside_its_arena);"
        yield f"{prefix}_ASSERT({name}_OFFSET % {unit}u == 0, {name}_is_aligned);"


def _described(value: TableValue, table: RunTable) -> str:
    owner = f"alias of {table.values[value.alias].name}" if value.alias is not None else ""
    row = {"dtype": value.dtype, "shape": value.shape}
    return ", ".join(filter(None, (value.name, tensor_type(row), value.kind, owner)))


FORMAT = Format("header", ".h", _write, "a C header (C99, C++11): offsets, shapes, and the nodes in order")


# Parts of C sources: comments, texts, numbers and lists.

_LONGEST = 4000
"""Bytes of a text, at most: C99 (5.2.4.1) takes 4,095 characters."""


def comment(text: str) -> str:
    """Return `text` so that it can neither end nor begin a comment, whatever the names of tensors."""
    kept = "".join(char if char.isprintable() and char not in "\\?" else "_" for char in text)
    return kept.replace("*/", "*_").replace("/*", "_*")


def literal(text: str) -> str:
    """Return `text` in UTF-8 as a string literal; of a very long text the end is kept. Nothing in it ends or begins a comment."""
    data = text.encode(errors="surrogatepass")[-_LONGEST:]
    content = "".join(chr(byte) if _is_plain(byte) else _octal(byte) for byte in data)
    return '"' + content.replace("*/", "*" + _octal(ord("/"))).replace("/*", "/" + _octal(ord("*"))) + '"'


def _octal(byte: int) -> str:
    return f"\\{byte:03o}"


def _is_plain(byte: int) -> bool:
    # Of "??", "\\" and '"' a compiler makes something else.
    return 32 <= byte < 127 and byte not in b'?\\"'


def whole_number(number: int) -> str:
    """Return `number`, of 64 bits, as a constant expression: the smallest one has no literal."""
    return str(number) if number > -(2**63) else f"({number + 1} - 1)"


def float_number(number: float | str) -> str:
    """Return `number` as a constant expression; one that is not finite needs math.h."""
    value = float(number)
    if math.isnan(value):
        return "NAN"
    return repr(value) if math.isfinite(value) else f"{'-' if value < 0 else ''}INFINITY"


def array(declaration: str, count: str, rows: Iterable[str], empty: str = "0") -> Iterator[str]:
    """Yield the lines of a constant array. Without rows it has the one element `empty`, because C has no empty array."""
    lines = list(rows)
    yield f"static const {declaration}[{count if lines else 1}] = {{"
    yield from (f"    {line}," for line in lines or [empty])
    yield "};"


def filled(text: str, prefix: str, **holes: object) -> str:
    """Return a `text` of C with its holes filled: "$P" is the prefix of macros, "$p" the same in lower case for other names."""
    return Template(text.rstrip("\n")).substitute(holes, P=prefix, p=prefix.lower())


# Names of tensors as C identifiers.

_SIGNIFICANT = 40
"""Characters kept of a name. C99 (5.2.4.1) distinguishes 63; the prefix and the ending of a macro need the others."""


def identifier(name: str) -> str:
    """Return `name` with one underscore for each run of characters that C does not allow. It is never empty; it may begin with a digit."""
    return re.sub(r"[^A-Za-z0-9]+", "_", name).strip("_") or "unnamed"


def identifiers(names: Iterable[str]) -> list[str]:
    """Return an identifier for each of `names`, all different: of a long name its end, and a number where two would be the same."""
    wanted = [identifier(name)[-_SIGNIFICANT:].strip("_") for name in names]
    times = Counter(wanted)
    used = {name for name in wanted if times[name] == 1}
    numbers = {name: count(1) for name in wanted if times[name] > 1}
    unique_names = []
    for name in wanted:
        unique = name if times[name] == 1 else next(n for i in numbers[name] if (n := f"{name}_{i}") not in used)
        used.add(unique)
        unique_names.append(unique)
    return unique_names


# The table that a runtime runs a plan from: all values by index, and the nodes in order with the indices of operands and results.

ABSENT = -1
"""The index of an operand or result that is left out."""

_COPY_FIELDS = ("bytes", "step", "target_free", "source_ready", "before", "source_until")
"""The fields of a copy between memories after its source and its result, in the order of the C struct (`copy` in c/header.h)."""


@dataclass(frozen=True)
class TableValue:
    """A value: a buffer of an arena, a constant, or a value that the caller or a kernel holds.

    `block` is the name of its arena, None outside of arenas. `offset` (bytes) counts from the start of the arena or, of a constant, from
    the start of the block of constants; None without an address. `size` is in bytes, None where it is not known. `first` and `last` are
    steps, both inclusive. `alias` is the index of the value that owns the bytes, if that is another. `strides` are the elements from one
    index of each axis to the next.
    """

    name: str
    kind: str
    block: str | None
    offset: int | None
    size: int | None
    first: int
    last: int
    alias: int | None
    dtype: str | None
    shape: tuple[int, ...] | None
    strides: tuple[int, ...] = ()


@dataclass(frozen=True)
class TableNode:
    """A node: its operator, the step in which it runs, and the indices of its operands and results (ABSENT: left out)."""

    name: str
    domain: str
    op_type: str
    step: int
    operands: tuple[int, ...]
    results: tuple[int, ...]
    attributes: Mapping[str, Any]


TableNumbers: TypeAlias = tuple[int | None, ...]


@dataclass(frozen=True)
class RunTable:
    """The values of a plan and the nodes of its main graph that run at each inference, in order.

    `values` begin with the `planned` buffers of arenas by their first step; constants and values outside follow. `inputs` and `outputs` are
    indices of values. `states` are those that the plan keeps in an arena, `copies` those between two memories: the numbers of the C struct
    of each (`state` and `copy` in c/header.h), in its order; None is no step.
    """

    values: tuple[TableValue, ...]
    planned: int
    nodes: tuple[TableNode, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    states: tuple[TableNumbers, ...] = ()
    copies: tuple[TableNumbers, ...] = ()


def run_table(plan: PlanJson) -> RunTable:
    """Return the table of `plan`. A node with a body, such as an If, is one node; a bare problem has no nodes."""
    rows = sorted(rows_with_bodies(plan), key=lambda row: (row["first"], row["last"]))
    # A tensor of a body has the path to it in its name; one of the main graph may be called like that, and goes first.
    main = {id(row) for row in plan["buffers"]}
    numbers = {row["name"]: i for i, row in enumerate(rows)}
    numbers |= {row["name"]: i for i, row in enumerate(rows) if id(row) in main}
    values = [
        _value(row, row["kind"], row["arena"], (row["first"], row["last"]), numbers.get(row.get("alias") or ""))
        for row in rows
    ]
    running = list(_running(plan))
    ends = [[row["name"] for row in plan.get(key) or ()] for key in ("inputs", "outputs")]
    read = chain.from_iterable((*operands, *results) for _, _, _, operands, results, _ in running)
    constants = {row["name"]: row for row in reversed(plan.get("constants") or ())}
    known = {row["name"]: row for key in ("outside", "unplanned", "outputs", "inputs") for row in plan.get(key) or ()}
    index = {row["name"]: numbers[row["name"]] for row in plan["buffers"]}
    for name in dict.fromkeys(chain(reversed(constants), *ends, read)):
        if name and name not in index:
            index[name] = len(values)
            row = {**(constants.get(name) or known.get(name) or {}), "name": name}
            values.append(_value(row, "constant" if name in constants else "outside"))
    nodes = []
    for step, name, operator, operands, results, attributes in running:
        domain, _, op_type = operator.rpartition("::")
        reads, makes = (tuple(index.get(value, ABSENT) for value in names) for names in (operands, results))
        nodes.append(TableNode(name, domain, op_type, step, reads, makes, attributes))
    states = tuple(
        (index[state["input"]], index[state["output"]], state["size"], state["copied"], *_rows_of(state))
        for state in plan.get("states") or ()
        if is_kept(state)
    )
    copies = tuple(
        (index[copy["source"]], index[copy["result"]], *(copy[key] for key in _COPY_FIELDS))
        for copy in (plan.get("movement") or {}).get("copies", ())
    )
    inputs, outputs = (tuple(index[name] for name in names) for names in ends)
    return RunTable(tuple(values), len(rows), tuple(nodes), inputs, outputs, states, copies)


def _running(plan: PlanJson) -> Iterator[tuple[Any, ...]]:
    """Yield the nodes of the main graph that run at each inference, if `plan` describes them.

    Of each: its step, its name, its operator, its operands, its results and its attributes.
    """
    constant = set(plan.get("constant_nodes") or ())
    lists = [plan.get(key) or () for key in ("operators", "operands", "results", "attributes")]
    for (step, name), *described in zip(runs(plan), *lists, strict=False):
        if name not in constant:
            yield step, name, *described


def _value(
    row: Mapping[str, Any],
    kind: str,
    block: str | None = None,
    life: tuple[int, int] = (0, 0),
    alias: int | None = None,
) -> TableValue:
    address = (row.get("offset"), row.get("size"))
    return TableValue(row["name"], kind, block, *address, *life, alias, row.get("dtype"), _shape(row), _strides(row))


def _strides(row: Mapping[str, Any]) -> tuple[int, ...]:
    """Return the elements from one index of each axis of `row` to the next: those it has, else those of contiguous elements."""
    shape = _shape(row) or ()
    if row.get("strides"):
        size = element_bytes(row)
        return tuple(stride // size for stride in row["strides"])
    return tuple(prod(shape[axis + 1 :]) for axis in range(len(shape)))


def element_bytes(row: Mapping[str, Any]) -> int:
    """Return the bytes of an element of `row`, a tensor that is not contiguous."""
    size: int = row["size"] // prod(row["shape"])
    return size


def _shape(row: Mapping[str, Any]) -> tuple[int, ...] | None:
    shape = row.get("shape")
    return None if shape is None else tuple(shape)


def _rows_of(state: Mapping[str, Any]) -> tuple[int, int]:
    """Return the number of rows of `state` before the axis that grows, and the bytes from one to the next."""
    if not state["strides"] or not state["axis"] or not state["size"]:
        return 1, state["size"]
    pitch = state["strides"][state["axis"] - 1]
    return state["size"] // pitch, pitch


_BITS: Mapping[str, int] = {
    **{"": 0, "FLOAT": 32, "UINT8": 8, "INT8": 8, "UINT16": 16, "INT16": 16, "INT32": 32, "INT64": 64, "STRING": 0},
    **{"BOOL": 8, "FLOAT16": 16, "DOUBLE": 64, "UINT32": 32, "UINT64": 64, "COMPLEX64": 64, "COMPLEX128": 128},
    **{"BFLOAT16": 16, "FLOAT8E4M3FN": 8, "FLOAT8E4M3FNUZ": 8, "FLOAT8E5M2": 8, "FLOAT8E5M2FNUZ": 8},
    **{
        "UINT4": 4,
        "INT4": 4,
        "FLOAT4E2M1": 4,
        "FLOAT8E8M0": 8,
        "UINT2": 2,
        "INT2": 2,
        "FLOAT6E2M3": 6,
        "FLOAT6E3M2": 6,
    },
}
"""Bits of an element by its type, 0 where they are not fixed."""
TYPES = tuple(_BITS)
"""Element types by their numbers in ONNX (onnx.proto, TensorProto.DataType)."""

KINDS = ("activation", "output", "input", "workspace", "constant", "outside")
"""Kinds of tensors, by their numbers in the header."""


# The tables of a C header: tensors by index, nodes in order, and what they read, write and are told.


def tables(table: RunTable, names: Sequence[str], blocks: Mapping[str, str], prefix: str) -> Iterator[str]:
    """Yield the lines of all tables. `names` are identifiers of the values, `blocks` the macros of the arenas by name."""
    yield from _indices(table, names, prefix)
    yield from _enumerated(f"{prefix.lower()}_type", prefix, _types(table))
    yield from _enumerated(f"{prefix.lower()}_kind", prefix, [(f"KIND_{k.upper()}", n) for n, k in enumerate(KINDS)])
    yield from _tensors(table, names, blocks, prefix)
    yield "/* The bytes of each block: the arenas, then the constants. */"
    sizes = [f"{block}_SIZE" for block in (*blocks.values(), f"{prefix}_CONSTANTS")]
    yield from array(f"size_t {prefix.lower()}_block_sizes", f"{prefix}_ARENA_COUNT + 1u", sizes)
    yield from _nodes(table, prefix)


def _enumerated(name: str, prefix: str, entries: Sequence[tuple[str, int]]) -> Iterator[str]:
    yield f"enum {name} {{"
    yield ",\n".join(f"    {prefix}_{entry} = {number}" for entry, number in entries)
    yield "};"


def _indices(table: RunTable, names: Sequence[str], prefix: str) -> Iterator[str]:
    """Yield the index of each tensor in the table."""
    yield from ("", f"#define {prefix}_TENSOR_COUNT {table.planned}u  /* tensors in arenas: the first of the table */")
    yield f"#define {prefix}_VALUE_COUNT {len(names)}u  /* all tensors of the table */"
    if names:
        yield "/* The index of each tensor in the table below. */"
        yield from _enumerated(
            f"{prefix.lower()}_index", prefix, [(f"I_{name}", number) for number, name in enumerate(names)]
        )


def _types(table: RunTable) -> list[tuple[str, int]]:
    """Return the element types in use; a workspace has the type 0."""
    used = sorted({_type(value) for value in table.values} | {0})
    return [(f"TYPE_{TYPES[number] or 'NONE'}", number) for number in used]


def _type(value: TableValue) -> int:
    return TYPES.index(value.dtype) if value.dtype in TYPES else 0


_NO_TENSOR = '{"", 0u, 0u, 0u, 0u, 0u, -1, ${P}_TYPE_NONE, ${P}_KIND_OUTSIDE, -1, {0u}, {0u}}'


def _tensors(table: RunTable, names: Sequence[str], blocks: Mapping[str, str], prefix: str) -> Iterator[str]:
    values, low = table.values, prefix.lower()
    rank = max((len(value.shape or ()) for value in values), default=0)
    width = 32 if all(value.last < 2**32 for value in values) else 64
    wide = 32 if all(size < 2**32 for v in values for size in (*(v.shape or ()), *v.strides)) else 64
    yield filled(_C["tensor"].lstrip(), prefix, rank=max(rank, 1), width=width, wide=wide)
    rows = [_row(value, number, names, blocks, prefix) for number, value in enumerate(values)]
    empty = filled(_NO_TENSOR, prefix)
    yield from array(f"struct {low}_tensor {low}_tensors", f"{prefix}_VALUE_COUNT", rows, empty)


def _row(value: TableValue, number: int, names: Sequence[str], blocks: Mapping[str, str], prefix: str) -> str:
    placed = value.block is not None
    where = f"{prefix}_T_{names[number]}_OFFSET, {prefix}_T_{names[number]}_SIZE"
    if not placed:
        where = f"{value.offset or 0}u, {_bytes(value)}u"
    in_block = value.offset is not None
    block = blocks[value.block] if value.block is not None else f"{prefix}_{'CONSTANTS' if in_block else 'OUTSIDE'}"
    alias = -1 if value.alias is None else f"{prefix}_I_{names[value.alias]}"
    kind = KINDS.index(value.kind) if value.kind in KINDS else 0
    rank = -1 if value.shape is None else len(value.shape)
    types = f"{prefix}_TYPE_{TYPES[_type(value)] or 'NONE'}, {prefix}_KIND_{KINDS[kind].upper()}, {rank}"
    sizes, strides = (", ".join(f"{size}u" for size in axes or (0,)) for axes in (value.shape, value.strides))
    address = f"{where}, {value.first}u, {value.last}u, {block}, {alias}"
    return f"{{{literal(value.name)}, {address}, {types}, {{{sizes}}}, {{{strides}}}}}"


def _bytes(value: TableValue) -> int:
    """Return the bytes of a value outside of arenas, 0 where they are not known."""
    if value.size is not None or value.shape is None:
        return value.size or 0
    return (prod(value.shape) * element_bits(value) + 7) // 8


def element_bits(value: TableValue) -> int:
    """Return the bits of an element of `value`, 0 where they are not known."""
    return _BITS.get(value.dtype or "", 8)


def _nodes(table: RunTable, prefix: str) -> Iterator[str]:
    low, nodes = prefix.lower(), table.nodes
    links = [(*node.operands, *node.results) for node in nodes]
    attributes = _AttributeLists(prefix)
    given = [tuple(attributes.add(name, value) for name, value in node.attributes.items()) for node in nodes]
    yield filled(_C["attribute"], prefix)
    yield from attributes.pools()
    rows = [row for rows in given for row in rows]
    yield from array(f"struct {low}_attribute {low}_attributes", str(len(rows)), rows, f'{{"", {prefix}_INTS, 0u, 0u}}')
    yield filled(_C["links"], prefix)
    listed = (", ".join(map(str, row)) for row in links if row)
    yield from array(f"int32_t {low}_links", str(sum(map(len, links))), listed)
    yield filled(_C["node"], prefix, count=len(nodes))
    starts = zip(accumulate(map(len, links), initial=0), accumulate(map(len, given), initial=0), strict=True)
    yield from array(
        f"struct {low}_node {low}_nodes",
        f"{prefix}_NODE_COUNT",
        (_node_initialiser(node, *start) for node, start in zip(nodes, starts, strict=False)),
        '{"", "", "", 0u, 0u, 0u, 0u, 0u, 0u, 0u}',
    )
    for name, ends in (("input", table.inputs), ("output", table.outputs)):
        yield f"#define {prefix}_{name.upper()}_COUNT {len(ends)}u"
        yield from array(f"uint32_t {low}_{name}s", f"{prefix}_{name.upper()}_COUNT", (f"{end}u" for end in ends))
    if table.states:
        yield filled(_C["state"], prefix, count=len(table.states))
        kept = (_initialiser(state, prefix) for state in table.states)
        yield from array(f"struct {low}_state {low}_states", f"{prefix}_STATE_COUNT", kept)
    if table.copies:
        yield filled(_C["copy"], prefix, count=len(table.copies))
        copies = (_initialiser(copy, prefix) for copy in table.copies)
        yield from array(f"struct {low}_copy {low}_copies", f"{prefix}_COPY_COUNT", copies)


def _initialiser(numbers: TableNumbers, prefix: str) -> str:
    """Return the fields of a state or a copy, in the order in which they are declared; None is no step."""
    fields = (f"{prefix}_NEVER" if number is None else f"{number}u" for number in numbers)
    return f"{{{', '.join(fields)}}}"


def _node_initialiser(node: TableNode, link: int, attribute: int) -> str:
    names = ", ".join(map(literal, (node.name, node.domain, node.op_type)))
    operands, results = len(node.operands), len(node.results)
    links = f"{link}u, {operands}u, {link + operands}u, {results}u"
    return f"{{{names}, {node.step}u, {links}, {attribute}u, {len(node.attributes)}u}}"


class _AttributeLists:
    """The values of attributes, collected in one list for each kind of value."""

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        self._values: dict[str, list[str]] = {"INTS": [], "FLOATS": [], "TEXTS": []}

    def add(self, name: str, value: Any) -> str:
        """Add the `value` of the attribute `name`, a number, a text or a list of these; return its row in the table."""
        entries = list(value) if isinstance(value, list | tuple) else [value]
        kind, write = _written(entries)
        values = self._values[kind]
        row = f"{{{literal(name)}, {self._prefix}_{kind}, {len(values)}u, {len(entries)}u}}"
        values += map(write, entries)
        return row

    def pools(self) -> Iterator[str]:
        """Yield the lists."""
        low = self._prefix.lower()
        if any("INFINITY" in value or "NAN" in value for value in self._values["FLOATS"]):
            yield "#include <math.h>"
        for kind, declared in (("INTS", "int64_t "), ("FLOATS", "double "), ("TEXTS", "char *const ")):
            values = self._values[kind]
            yield from array(f"{declared}{low}_{kind.lower()}", str(len(values)), values)


def _written(entries: Sequence[Any]) -> tuple[str, Callable[[Any], str]]:
    """Return the kind of the values `entries` of one attribute, and the function that writes one."""
    if all(isinstance(entry, int) for entry in entries):
        return "INTS", whole_number
    if all(isinstance(entry, float) or entry in _NOT_FINITE for entry in entries):
        return "FLOATS", float_number
    return "TEXTS", literal


_NOT_FINITE = frozenset({"inf", "-inf", "nan"})
"""Floats as a plan writes them that JSON has no number for."""
