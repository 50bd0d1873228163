"""The page of `tests.bench.compare`, from its rows. A peer's number that is less than onnxtile's is bold."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from tests.bench.compare_parts import OPERATORS, RANGES, Row

BEGIN, END = "<!-- begin of compare.py -->\n", "<!-- end of compare.py -->\n"


def _cell(row: Row, key: str, shape: str = ",") -> str:
    return str(row["failed"]) if "failed" in row else "none" if row.get(key) is None else format(row[key], shape)


def _bold(cells: Sequence[str], numbers: Sequence[float | None]) -> list[str]:
    """Return the cells, those of peers bold that need less than onnxtile, which is the first."""
    own = numbers[0]
    better = [own is not None and one is not None and one < own for one in numbers]
    return [f"**{cell}**" if wins else cell for cell, wins in zip(cells, better, strict=True)]


def _fuse_page(rows: Mapping[str, Row]) -> Iterator[str]:
    yield "| model | tool | layer norms | GELUs | attentions | result | CPU, s | MB |\n|---|---|---|---|---|---|---:|---:|"
    for name, row in rows.items():
        own = row["tools"]["onnxtile"]
        for tool, one in row["tools"].items():
            if "failed" in one:
                yield f"| {name} | {tool} | {one['failed']} | | | | | |"
                continue
            known = {key: row["there"].get(key) for key in OPERATORS}
            counts = [f"{one['counts'][key]} of {known[key] if known[key] is not None else '?'}" for key in OPERATORS]
            costs = [f"{one['seconds']:.2f}", f"{one['memory'] / 1e6:.0f}"]
            pairs = [
                _bold(["", cell], [own.get(key), one[key]])[1]
                for cell, key in zip(costs, ("seconds", "memory"), strict=True)
            ]
            verdict = one["verdict"] + (f"; certify: {one['certify']}" if one.get("certify") else "")
            yield f"| {name} | {tool} | {' | '.join(counts)} | {verdict} | {' | '.join(pairs)} |"


def _plan_page(rows: Mapping[str, Row]) -> Iterator[str]:
    yield (
        "| model | arena | proved | onnxsim (left out) | the same buffers: plan | Vela greedy | Vela hillclimb "
        "| plan, CPU s | MB | without proof, s | onnxsim, CPU s | MB |\n|---|---:|---|" + "---:|" * 9
    )
    ratios = []
    for name, row in rows.items():
        sim, vela, costs = row["onnxsim"], row["vela"], row["costs"]
        arenas = _bold([f"{row['arena']:,}", _cell(sim, "arena")], [row["arena"], sim.get("arena")])
        left = f" ({sim['left_out']})" if "left_out" in sim else ""
        same = [row["same buffers"], *(one.get("arena") for one in vela.values())]
        offsets = _bold([f"{same[0]:,}", *(_cell(one, "arena") for one in vela.values())], same)
        used = [costs.get(key) or {"seconds": math.nan, "memory": math.nan} for key in ("plan", "no proof", "onnxsim")]
        ratios += [used[0]["seconds"] / used[2]["seconds"]]
        seconds = _bold([f"{one['seconds']:.2f}" for one in used], [one["seconds"] for one in used])
        memory = _bold(
            [f"{one['memory'] / 1e6:.0f}" for one in (used[0], used[2])], [used[0]["memory"], used[2]["memory"]]
        )
        cells = [
            arenas[0],
            row["proved"] or "no",
            arenas[1] + left,
            *offsets,
            seconds[0],
            memory[0],
            used[1]["seconds"],
            seconds[2],
            memory[1],
        ]
        cells[8] = f"{used[1]['seconds']:.2f}"
        yield f"| {name} | {' | '.join(cells)} |"
    known = [ratio for ratio in ratios if not math.isnan(ratio)]
    if known:
        spread = f"median {statistics.median(known):.2f}, most {max(known):.2f}"
        yield f"\nProcessor time of plan, its run included, over that of onnxsim: {spread}."


def _problems_page(rows: Mapping[str, Row]) -> Iterator[str]:
    tools = ("onnxtile", "MiniMalloc", "vela greedy", "vela hillclimb")
    yield f"| problem | capacity | {' | '.join(f'{tool} | s' for tool in tools)} |\n|---|---:|" + "---:|---:|" * len(
        tools
    )
    for name, row in rows.items():
        arenas = [_cell(row[tool], "arena") for tool in tools]
        times = _bold(
            [_cell(row[tool], "seconds", ".1f") if "failed" not in row[tool] else "" for tool in tools],
            [_fitting_seconds(row, tool) for tool in tools],
        )
        cells = (part for pair in zip(arenas, times, strict=True) for part in pair)
        yield f"| {name} | {row['capacity']:,} | {' | '.join(cells)} |"


def _fitting_seconds(row: Row, tool: str) -> float | None:
    """Return the seconds of a tool that fits the capacity: another one is no faster."""
    arena = row[tool].get("arena")
    return row[tool]["seconds"] if arena is not None and arena <= row["capacity"] else None


def _ranges_page(rows: Mapping[str, Row]) -> Iterator[str]:
    yield "| model | arena over the range | its peak | onnxsim's shape_cost: arena | its peak |\n|---|---:|---:|---:|---:|"
    for name, row in rows.items():
        if "failed" in row:
            yield f"| {name} | {row['failed']} | | | |"
            continue
        theirs = row["shape_cost"]
        arenas = _bold([f"{row['arena']:,}", _cell(theirs, "arena")], [row["arena"], theirs.get("arena")])
        yield f"| {name} | {arenas[0]} | {row['peak']:,} | {arenas[1]} | {_cell(theirs, 'peak')} |"


def _lines_page(rows: Mapping[str, Row]) -> Iterator[str]:
    head = True
    for row in rows.values():
        lines = [line for line in row.get("lines", []) if line.startswith("|")]
        yield from lines if head else lines[2:]
        head = head and not lines


def _queries_page(rows: Mapping[str, Row]) -> Iterator[str]:
    for row in rows.values():
        yield from row.get("lines", [f"Aidge: {row.get('failed')}"])


def _fit_page(rows: Mapping[str, Row]) -> Iterator[str]:
    yield "| model | arena before | after | s |\n|---|---:|---:|---:|"
    for name, row in rows.items():
        cells = (
            [_cell(row, "before"), _cell(row, "after"), _cell(row, "seconds", ".0f")]
            if "failed" not in row
            else [row["failed"], "", ""]
        )
        yield f"| {name} | {' | '.join(cells)} |"


PAGES: Mapping[str, tuple[str, Callable[[Mapping[str, Row]], Iterator[str]]]] = {
    "fuse": ("Coverage, results and price of rewriting", _fuse_page),
    "plan": ("Arenas and price of planning", _plan_page),
    "problems": ("MiniMalloc's problems", _problems_page),
    "ranges": (f"Ranges of sizes: {', '.join(RANGES)}", _ranges_page),
    "quantised": ("Quantised models", _lines_page),
    "queries": ("Queries, beside Aidge", _queries_page),
    "fit": ("The least arena that fit reaches; no peer has this", _fit_page),
}


def page(rows: Mapping[str, Any]) -> str:
    """Return the part of the page between its marks."""
    about = rows["about"]
    versions = "; ".join(f"{name} {version}" for name, version in about["versions"].items())
    lines = [
        "## Beside the peers",
        "",
        f"`python -m tests.bench.compare` wrote this part on {about['date']}, on {about['machine']}, with onnxtile {about['onnxtile']}.",
        f"Peers: {versions}. Processor time is of whole commands, all threads. A peer's number that is less than onnxtile's is bold.",
        "`fuse` and `plan` verify what they write; the times of peers are without a comparison of results.",
    ]
    for part, (title, write) in PAGES.items():
        if rows.get(part):
            lines += ["", f"### {title}", "", *write(rows[part])]
    return "\n".join(lines) + "\n"


def written(text: str, part: str) -> str:
    """Return a page with its part between the marks replaced; a page without marks gets them behind its title."""
    if BEGIN not in text:
        title, _, rest = text.partition("\n")
        text = f"{title}\n\n{BEGIN}{END}{rest}"
    return f"{text.split(BEGIN)[0]}{BEGIN}{part}{END}{text.split(END)[1]}"
