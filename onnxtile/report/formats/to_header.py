"""The plan as a C header (C99 and C++11): arena sizes, offset and size of each tensor, a table in step order, static assertions.

An enumerator for each tensor is its index in the table, which has its element type and shape too.

Every macro begins with the name of the file, so that the headers of several models go together. Numbers are unsigned literals
without casts, so that the preprocessor can compare them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from onnxtile.report.bodies import rows_with_bodies
from onnxtile.report.format import Format, PlanJson, RenderOptions
from onnxtile.report.headline import tensor_type
from onnxtile.report.identifiers import identifier, identifiers
from onnxtile.report.layout import BufferJson, arenas

_ELEMENT = {"FLOAT": 4, "INT32": 4, "UINT32": 4, "DOUBLE": 8, "INT64": 8, "UINT64": 8, "COMPLEX64": 8, "COMPLEX128": 16}
_ELEMENT |= dict.fromkeys(("FLOAT16", "BFLOAT16", "INT16", "UINT16"), 2)
"""Bytes of an element of more than one, by type."""

_TYPES = (
    *("", "FLOAT", "UINT8", "INT8", "UINT16", "INT16", "INT32", "INT64", "STRING", "BOOL", "FLOAT16", "DOUBLE"),
    *("UINT32", "UINT64", "COMPLEX64", "COMPLEX128", "BFLOAT16", "FLOAT8E4M3FN", "FLOAT8E4M3FNUZ", "FLOAT8E5M2"),
    *("FLOAT8E5M2FNUZ", "UINT4", "INT4", "FLOAT4E2M1", "FLOAT8E8M0", "UINT2", "INT2", "FLOAT6E2M3", "FLOAT6E3M2"),
)
"""Element types by their numbers in ONNX (onnx.proto, TensorProto.DataType)."""

_LANGUAGE = """\
#if defined(__cplusplus)
#  if __cplusplus < 201103L && !(defined(_MSVC_LANG) && _MSVC_LANG >= 201103L)
#    error "this header needs C++11 or C99"
#  endif
#  define {prefix}_ASSERT(condition, name) static_assert(condition, #name)
#elif !defined(__STDC_VERSION__) || __STDC_VERSION__ < 199901L
#  error "this header needs C99 or C++11"
#elif __STDC_VERSION__ >= 201112L
#  define {prefix}_ASSERT(condition, name) _Static_assert(condition, #name)
#else  /* C99: an array of negative size does not compile */
#  define {prefix}_ASSERT(condition, name) typedef char name[(condition) ? 1 : -1]
#endif
"""


def _write(plan: PlanJson, options: RenderOptions) -> bytes:
    prefix = identifier(options.title).upper()
    prefix = f"PLAN_{prefix}" if prefix[0].isdigit() else prefix
    rows = sorted(rows_with_bodies(plan), key=lambda row: (row["first"], row["last"]))
    tensors = identifiers(row["name"] for row in rows)
    names = [f"{prefix}_T_{name}" for name in tensors]
    layouts = arenas(plan)
    blocks = dict(zip((a.name for a in layouts), identifiers(_block(a.name) for a in layouts), strict=True))
    blocks = {name: f"{prefix}_ARENA_{block}" for name, block in blocks.items()}
    units = [_unit(row, plan) for row in rows]
    widest = max((_alignment(plan), *units))
    lines = [*_head(plan, prefix), *_arenas(plan, prefix, blocks, widest), *_tensors(rows, names)]
    lines += [*_constants(plan, prefix), *_indices(tensors, prefix), *_types(rows, prefix)]
    lines += [*_table(rows, names, blocks, prefix), *_assertions(rows, names, units, blocks, prefix)]
    return "\n".join([*lines, "", f"#endif  /* {prefix}_H */", ""]).encode()


def _alignment(plan: PlanJson) -> int:
    unit: int = plan.get("alignment") or 1
    return unit


def _unit(row: BufferJson, plan: PlanJson) -> int:
    """Return the alignment of `row` in bytes: that of its element, and for an owner of bytes at least that of the plan."""
    element = _ELEMENT.get(row.get("dtype") or "", 1)
    return element if row.get("alias") is not None else max(element, _alignment(plan))


def _block(arena: str) -> str:
    """Return the name of an arena in macros, which differs from all other macros, also with _SIZE behind it."""
    name = identifier(arena).upper()
    return f"{name}_ARENA" if name == "COUNT" or name.split("_")[-1] == "SIZE" else name


def _head(plan: PlanJson, prefix: str) -> Iterator[str]:
    yield "/* Addresses of all tensors of a model, planned by onnxtile. Sizes and offsets are bytes."
    if plan.get("model"):
        yield f" * Model: {_comment(plan['model'])}."
    yield f" * File: {'SHA-256 ' + plan['digest'] if plan.get('digest') else 'none'}."
    for given in plan.get("inputs") or ():
        yield f" * Input: {_comment(given['name'])}, {_comment(tensor_type(given))}."
    for name, size in (plan.get("dims") or {}).items():
        yield f" * {_comment(name)} = {size}."
    for left in plan.get("unplanned", ()):
        yield f" * Without an address: {_comment(left['name'])} ({_comment(left['reason'])})."
    yield " */"
    yield from (f"#ifndef {prefix}_H", f"#define {prefix}_H", "")
    yield from ("#include <stddef.h>", "#include <stdint.h>", "", _LANGUAGE.format(prefix=prefix))


def _arenas(plan: PlanJson, prefix: str, blocks: dict[str, str], alignment: int) -> Iterator[str]:
    yield "/* Arenas: blocks of memory to provide, each aligned. The macro of an arena is its number in the table. */"
    yield f"#define {prefix}_ALIGNMENT {alignment}u"
    yield f"#define {prefix}_ARENA_COUNT {len(blocks)}u"
    for number, layout in enumerate(arenas(plan)):
        yield f"#define {blocks[layout.name]} {number}u  /* {_comment(layout.name)} */"
        yield f"#define {blocks[layout.name]}_SIZE {layout.size}u"
    if len(blocks) == 1:
        yield f"#define {prefix}_ARENA_SIZE {next(iter(blocks.values()))}_SIZE"


def _tensors(rows: Iterable[BufferJson], names: Iterable[str]) -> Iterator[str]:
    yield from ("", "/* Tensors. */")
    for row, name in zip(rows, names, strict=True):
        yield f"#define {name}_OFFSET {row['offset']}u  /* {_comment(_described(row))} */"
        yield f"#define {name}_SIZE {row['size']}u"


def _constants(plan: PlanJson, prefix: str) -> Iterator[str]:
    """Yield the macros of the constants that have offsets of their own."""
    placed = [row for row in plan.get("constants", ()) if row.get("offset") is not None and row.get("size") is not None]
    if not placed:
        return
    yield from ("", "/* Constants: offsets in a region of their own. */")
    for row, name in zip(placed, identifiers(row["name"] for row in placed), strict=True):
        yield f"#define {prefix}_C_{name}_OFFSET {row['offset']}u  /* {_comment(row['name'])} */"
        yield f"#define {prefix}_C_{name}_SIZE {row['size']}u"


def _indices(tensors: list[str], prefix: str) -> Iterator[str]:
    """Yield the index of each tensor in the table."""
    yield from ("", f"#define {prefix}_TENSOR_COUNT {len(tensors)}u")
    if not tensors:
        return
    yield "/* The index of each tensor in the table below. */"
    yield f"enum {prefix.lower()}_index {{"
    yield ",\n".join(f"    {prefix}_I_{name} = {number}" for number, name in enumerate(tensors))
    yield "};"


def _types(rows: list[BufferJson], prefix: str) -> Iterator[str]:
    """Yield the element types of the tensors; a workspace has the type 0."""
    used = sorted({_type(row) for row in rows} | {0})
    yield "/* Element types, by their numbers in ONNX. */"
    yield f"enum {prefix.lower()}_type {{"
    yield ",\n".join(f"    {prefix}_TYPE_{_TYPES[number] or 'NONE'} = {number}" for number in used)
    yield "};"


def _type(row: BufferJson) -> int:
    dtype = row.get("dtype") or ""
    return _TYPES.index(dtype) if dtype in _TYPES else 0


def _table(rows: list[BufferJson], names: list[str], blocks: dict[str, str], prefix: str) -> Iterator[str]:
    tensor = f"{prefix.lower()}_tensor"
    rank = max((len(row.get("shape") or ()) for row in rows), default=0)
    width = 32 if all(row["last"] < 2**32 for row in rows) else 64
    wide = 32 if all(size < 2**32 for row in rows for size in row.get("shape") or ()) else 64
    yield f"#define {prefix}_MAX_RANK {max(rank, 1)}u"
    yield f"struct {tensor} {{"
    yield "    size_t offset;         /* bytes from the start of its arena */"
    yield "    size_t size;           /* bytes */"
    yield f"    uint{width}_t first, last;  /* steps of its life, both inclusive */"
    yield "    uint32_t arena;"
    yield f"    enum {prefix.lower()}_type type;"
    yield "    int rank;              /* -1: without a shape, as a workspace */"
    yield f"    uint{wide}_t shape[{prefix}_MAX_RANK];"
    yield "};"
    if not rows:
        return
    yield "/* All tensors, by the first step of their lives. */"
    yield f"static const struct {tensor} {tensor}s[{prefix}_TENSOR_COUNT] = {{"
    for row, name in zip(rows, names, strict=True):
        shape = row.get("shape")
        kind = f"{prefix}_TYPE_{_TYPES[_type(row)] or 'NONE'}, {-1 if shape is None else len(shape)}"
        sizes = ", ".join(f"{size}u" for size in shape or (0,))
        place = f"{name}_OFFSET, {name}_SIZE, {row['first']}u, {row['last']}u, {blocks[row['arena']]}"
        yield f"    {{{place}, {kind}, {{{sizes}}}}},"
    yield "};"


def _assertions(
    rows: list[BufferJson], names: list[str], units: list[int], blocks: dict[str, str], prefix: str
) -> Iterator[str]:
    """Yield that each tensor is inside its arena, and at a multiple of its unit."""
    yield ""
    for block in blocks.values():
        yield f"{prefix}_ASSERT({block}_SIZE <= SIZE_MAX, {block}_fits_the_address_space);"
    for row, name, unit in zip(rows, names, units, strict=True):
        arena = f"{blocks[row['arena']]}_SIZE"
        inside = (
            f"{name}_SIZE <= {arena} && {name}_OFFSET <= {arena} - {name}_SIZE"  # without a sum that could overflow
        )
        yield f"{prefix}_ASSERT({inside}, {name}_is_inside_its_arena);"
        yield f"{prefix}_ASSERT({name}_OFFSET % {unit}u == 0, {name}_is_aligned);"


def _described(row: BufferJson) -> str:
    owner = f"alias of {row['alias']}" if row.get("alias") is not None else ""
    return ", ".join(filter(None, (row["name"], tensor_type(row), row["kind"], owner)))


def _comment(text: str) -> str:
    """Return `text` so that it can neither end nor begin a comment, whatever the names of tensors."""
    kept = "".join(char if char.isprintable() and char not in "\\?" else "_" for char in text)
    return kept.replace("*/", "*_").replace("/*", "_*")


FORMAT = Format("header", ".h", _write, "a C header (C99, C++11): sizes, offsets, shapes, steps")
