"""The plan as a C header (C99 and C++11): arena sizes, offset and size of each tensor, static assertions, and the tables to run it.

An enumerator for each tensor is its index in the table of tensors. The table of nodes has the nodes in order, with their operators,
attributes, operands and results.

Every macro begins with the name of the file, so that the headers of several models go together. Numbers are unsigned literals
without casts, so that the preprocessor can compare them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from onnxtile.model.formula import read_size
from onnxtile.report.c_header import (
    RunTable,
    TableValue,
    comment,
    element_bits,
    element_bytes,
    filled,
    identifier,
    identifiers,
    run_table,
    tables,
)
from onnxtile.report.format import Format, PlanJson, RenderOptions
from onnxtile.report.layout import arenas
from onnxtile.report.words import tensor_type

_LANGUAGE = """\
#ifndef ${P}_H
#define ${P}_H

#include <stddef.h>
#include <stdint.h>

#if defined(__cplusplus)
#  if __cplusplus < 201103L && !(defined(_MSVC_LANG) && _MSVC_LANG >= 201103L)
#    error "this header needs C++11 or C99"
#  endif
#  define ${P}_ASSERT(condition, name) static_assert(condition, #name)
#elif !defined(__STDC_VERSION__) || __STDC_VERSION__ < 199901L
#  error "this header needs C99 or C++11"
#elif __STDC_VERSION__ >= 201112L
#  define ${P}_ASSERT(condition, name) _Static_assert(condition, #name)
#else  /* C99: an array of negative size does not compile */
#  define ${P}_ASSERT(condition, name) typedef char name[(condition) ? 1 : -1]
#endif
"""


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
    lines = [*_head(plan, prefix), *_arenas(plan, prefix, blocks, widest), *_tensors(table, names)]
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
    """Return the name of an arena in macros, which differs from all other macros, also with _SIZE behind it."""
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
    yield filled(_LANGUAGE, prefix)
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


def _tensors(table: RunTable, names: Iterable[str]) -> Iterator[str]:
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


_AT_SIZES = """
/* The tensor with an index, at any sizes of the dimensions. Others than those below are the same at all sizes. */
static inline struct ${p}_tensor ${p}_tensor_at(uint32_t ${p}_i${head}) {
    struct ${p}_tensor ${p}_t = ${p}_tensors[${p}_i];
    int ${p}_axis, ${p}_is_plain = 1;
    ${unused}
    switch (${p}_i) {
${cases}    default:
        ${p}_is_plain = 0;
    }
    for (${p}_axis = ${p}_t.rank - 1; ${p}_is_plain && ${p}_axis >= 0; --${p}_axis)
        ${p}_t.strides[${p}_axis] = ${p}_axis == ${p}_t.rank - 1 ? 1u : ${p}_t.shape[${p}_axis + 1] * ${p}_t.strides[${p}_axis + 1];
    return ${p}_t;
}
"""


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
    yield filled(_AT_SIZES, prefix, head=head, unused=unused, cases="".join(f"{line}\n" for line in cases))


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
