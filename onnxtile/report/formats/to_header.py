"""The plan as a C header (C11 and C++11): arena sizes, offset and size of each tensor, a table in step order, static assertions.

Every macro begins with the name of the file, so that the headers of several models go together. Numbers are unsigned literals
without casts, so that the preprocessor can compare them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from onnxtile.report.bodies import rows_with_bodies
from onnxtile.report.format import Format, PlanJson, RenderOptions
from onnxtile.report.identifiers import identifier, identifiers
from onnxtile.report.layout import BufferJson, arenas

_ELEMENT = {"FLOAT": 4, "INT32": 4, "UINT32": 4, "DOUBLE": 8, "INT64": 8, "UINT64": 8, "COMPLEX64": 8, "COMPLEX128": 16}
_ELEMENT |= dict.fromkeys(("FLOAT16", "BFLOAT16", "INT16", "UINT16"), 2)
"""Bytes of an element of more than one, by type."""


def _write(plan: PlanJson, options: RenderOptions) -> bytes:
    prefix = identifier(options.title).upper()
    prefix = f"PLAN_{prefix}" if prefix[0].isdigit() else prefix
    rows = rows_with_bodies(plan)
    names = [f"{prefix}_T_{name}" for name in identifiers(row["name"] for row in rows)]
    layouts = arenas(plan)
    blocks = dict(zip((a.name for a in layouts), identifiers(_block(a.name) for a in layouts), strict=True))
    blocks = {name: f"{prefix}_ARENA_{block}" for name, block in blocks.items()}
    units = [_unit(row, plan) for row in rows]
    widest = max((_alignment(plan), *units))
    lines = [*_head(plan, prefix), *_arenas(plan, prefix, blocks, widest), *_tensors(rows, names)]
    lines += [*_constants(plan, prefix), *_table(rows, names, blocks, prefix), *_assertions(rows, names, units, blocks)]
    return "\n".join([*lines, "", f"#endif  /* {prefix}_H */", ""]).encode()


def _alignment(plan: PlanJson) -> int:
    unit: int = plan.get("alignment") or 1
    return unit


def _unit(row: BufferJson, plan: PlanJson) -> int:
    """Return what the address of `row` is a multiple of: the alignment of the plan where it owns its bytes, and its element."""
    element = _ELEMENT.get(row.get("dtype") or "", 1)
    return element if row.get("alias") is not None else max(element, _alignment(plan))


def _block(arena: str) -> str:
    """Return what an arena is called in macros: nothing that, or that with _SIZE behind, another macro is called."""
    name = identifier(arena).upper()
    return f"{name}_ARENA" if name == "COUNT" or name.split("_")[-1] == "SIZE" else name


def _head(plan: PlanJson, prefix: str) -> Iterator[str]:
    yield "/* Where every tensor of a model lies while it runs, as onnxtile planned it. Sizes and offsets are bytes."
    yield f" * Model: {'SHA-256 ' + plan['digest'] if plan.get('digest') else 'not a file'}."
    for name, size in (plan.get("dims") or {}).items():
        yield f" * {_comment(name)} = {size}."
    for left in plan.get("unplanned", ()):
        yield f" * Without an address: {_comment(left['name'])} ({_comment(left['reason'])})."
    yield " */"
    yield from (f"#ifndef {prefix}_H", f"#define {prefix}_H", "")
    yield from ("#include <assert.h>", "#include <stddef.h>", "#include <stdint.h>", "")


def _arenas(plan: PlanJson, prefix: str, blocks: dict[str, str], alignment: int) -> Iterator[str]:
    yield "/* Blocks of memory to provide, each aligned. An arena's own macro is its number in the table. */"
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


def _table(rows: list[BufferJson], names: list[str], blocks: dict[str, str], prefix: str) -> Iterator[str]:
    tensor = f"{prefix.lower()}_tensor"
    yield from ("", f"#define {prefix}_TENSOR_COUNT {len(rows)}u", f"struct {tensor} {{")
    yield "    size_t offset;        /* from the start of its arena */"
    yield "    size_t size;"
    width = 32 if all(row["last"] < 2**32 for row in rows) else 64
    yield f"    uint{width}_t first, last; /* steps of its life, both inclusive */"
    yield "    uint32_t arena;"
    yield "};"
    if not rows:
        return
    yield "/* All tensors, by the first step of their lives. */"
    yield f"static const struct {tensor} {tensor}s[{prefix}_TENSOR_COUNT] = {{"
    for row, name in sorted(zip(rows, names, strict=True), key=lambda pair: (pair[0]["first"], pair[0]["last"])):
        yield f"    {{{name}_OFFSET, {name}_SIZE, {row['first']}u, {row['last']}u, {blocks[row['arena']]}}},"
    yield "};"


def _assertions(rows: list[BufferJson], names: list[str], units: list[int], blocks: dict[str, str]) -> Iterator[str]:
    """Yield that each tensor is inside its arena, and at a multiple of its unit."""
    yield ""
    for block in blocks.values():
        yield f'static_assert({block}_SIZE <= SIZE_MAX, "{block} fits the address space");'
    for row, name, unit in zip(rows, names, units, strict=True):
        arena = f"{blocks[row['arena']]}_SIZE"
        inside = (
            f"{name}_SIZE <= {arena} && {name}_OFFSET <= {arena} - {name}_SIZE"  # without a sum that could overflow
        )
        yield f'static_assert({inside}, "{name} is inside its arena");'
        yield f'static_assert({name}_OFFSET % {unit}u == 0, "{name} is aligned");'


def _described(row: BufferJson) -> str:
    shape = "x".join(str(size) for size in row["shape"]) if row.get("shape") else ""
    parts = (row["name"], " ".join(filter(None, (row.get("dtype"), shape))), row["kind"])
    return ", ".join(filter(None, (*parts, f"in {row['alias']}" if row.get("alias") is not None else "")))


def _comment(text: str) -> str:
    """Return `text` so that it neither ends the comment it stands in nor looks like another, whatever a model calls its tensors."""
    kept = "".join(char if char.isprintable() and char not in "\\?" else "_" for char in text)
    return kept.replace("*/", "*_").replace("/*", "_*")


FORMAT = Format("header", ".h", _write, "a C header with sizes, offsets and the schedule")
