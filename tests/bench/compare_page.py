"""The page of `tests.bench.compare`, from its rows. A peer's number that is better than onnxtile's is bold."""

from __future__ import annotations

import math
import statistics
import textwrap
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from tests.bench.commands import Row
from tests.bench.compare_arenas import RANGES
from tests.bench.compare_rewriting import NO_FILE
from tests.bench.quantised_models import COLUMNS
from tests.bench.tables import head, line

BEGIN, END = "<!-- begin of compare.py -->\n", "<!-- end of compare.py -->\n"
_WIDTH = 118
_TITLES = {"layernorm": "layer norms", "rmsnorm": "RMS norms", "gelu": "GELUs", "attention": "attentions"}


def _cell(row: Row, key: str, shape: str = ",") -> str:
    return str(row["failed"]) if "failed" in row else "none" if row.get(key) is None else format(row[key], shape)


def _bold(cells: Sequence[str], numbers: Sequence[float | None]) -> list[str]:
    """Return the cells, those of peers bold that need less than onnxtile, which is the first."""
    own = numbers[0]
    better = [own is not None and one is not None and one < own for one in numbers]
    return [f"**{cell}**" if wins else cell for cell, wins in zip(cells, better, strict=True)]


def _ratio(own: float, other: float) -> str:
    """Return how many times as much onnxtile takes, bold where the peer takes less."""
    if math.isnan(own) or math.isnan(other):
        return ""
    return f"**{own / other:.2f}**" if own > other else f"{own / other:.2f}"


def _spread(ratios: Iterable[float]) -> str:
    known = [ratio for ratio in ratios if not math.isnan(ratio)]
    return f"{statistics.median(known):.2f} ({min(known):.2f} to {max(known):.2f})" if known else ""


def _compared(pairs: Iterable[tuple[float, float]]) -> str:
    """Return in how many pairs the first, onnxtile's, is less, equal and more."""
    signs = Counter((own > other) - (own < other) for own, other in pairs)
    return f"less in {signs[-1]}, equal in {signs[0]}, more in {signs[1]}"


def _fuse_page(rows: Mapping[str, Row]) -> Iterator[str]:
    tools = list(dict.fromkeys(tool for row in rows.values() for tool in row["tools"]))
    yield (
        "Each tool rewrites each model of the zoo. *Equal* compares the outputs of its file with those of the model, in onnxruntime on"
        " random inputs (`onnxtile.verify`). The columns of operators are those found of those there (truth.json of the zoo); what is"
        " found beyond those is behind a +, such as SiLU that onnxruntime writes as QuickGelu. Exports of dynamo (dy20) hold some as"
        " operators of ONNX already, which count as found where a tool keeps them. The ratio is the processor time of onnxtile over"
        " that of the tool, model by model. onnxsim folds and removes nodes and fuses nothing. onnxruntime is its own optimizer up to"
        " the extended level. Of Aidge the operators count that the queries fuse which it publishes; it has none for RMS norms. It"
        " writes no file that runs, so its results are not compared.\n"
    )
    yield head("tool", "models", "equal", "not equal or failed", *_TITLES.values(), "median time ratio", "MB, median")
    for tool in tools:
        yield _tool_line(tool, rows)
    yield f"\n{_quicker(rows, tools)}"
    certified = Counter(
        row["tools"]["onnxsim"]["certify"] for row in rows.values() if "certify" in row["tools"]["onnxsim"]
    )
    said = ", ".join(f"{word} {count}" for word, count in certified.most_common())
    yield f"onnxsim --certify says of its own results, model by model: {said}.\n"
    yield f"By model: {', '.join(_TITLES.values())}; seconds; the result where it is not equal. A time below that of onnxtile is bold.\n"
    yield head("model", "there", *tools, words=2 + len(tools))
    for name, row in rows.items():
        there = "/".join(str(row["there"].get(key, "?")) for key in _TITLES) if row["there"] else "unknown"
        yield line(name, there, *(_tool_cell(row["tools"][tool], row["tools"]["onnxtile"]) for tool in tools))


def _quicker(rows: Mapping[str, Row], tools: Sequence[str]) -> str:
    """Return which tools take less time than onnxtile in more than half of the models."""
    counts = {}
    for tool in tools[1:]:
        both = [(row["tools"][tool], row["tools"]["onnxtile"]) for row in rows.values()]
        wins = [one["seconds"] < own["seconds"] for one, own in both if "failed" not in one and "failed" not in own]
        counts[tool] = (sum(wins), len(wins))
    quicker = [f"{tool} (in {won} of {of})" for tool, (won, of) in counts.items() if 2 * won > of]
    return f"Quicker than onnxtile on most models: {', '.join(quicker) or 'none'}."


def _tool_line(tool: str, rows: Mapping[str, Row]) -> str:
    """Return the line of a tool over all models."""
    pairs = [(row["there"], row["tools"][tool], row["tools"]["onnxtile"]) for row in rows.values()]
    done = [pair for pair in pairs if "failed" not in pair[1]]
    words = Counter(one["verdict"].partition(":")[0] for _, one, _ in done)
    words["fails"] = len(pairs) - len(done)
    bad = ", ".join(f"{word} {count}" for word, count in words.items() if count and word != "equal") or "none"
    counts = []
    for key in _TITLES:
        known = [(there[key], one["counts"][key]) for there, one, _ in done if key in there]
        beyond = sum(max(0, found - there) for there, found in known)
        right = f"{sum(map(min, known))} of {sum(there for there, _ in known)}"
        counts.append(right + (f" + {beyond}" if beyond else ""))
    ratios = [own["seconds"] / one["seconds"] for _, one, own in done if "failed" not in own]
    memory = statistics.median(one["memory"] for _, one, _ in done) / 1e6 if done else math.nan
    return line(tool, len(pairs), words["equal"], bad, *counts, _spread(ratios), f"{memory:.0f}")


def _tool_cell(one: Row, own: Row) -> str:
    if "failed" in one:
        return str(one["failed"])
    counts = "/".join(str(one["counts"][key]) for key in _TITLES)
    seconds = _bold(["", f"{one['seconds']:.2f}"], [own.get("seconds"), one["seconds"]])[1]
    verdict = one["verdict"].partition(":")[0]
    return f"{counts}; {seconds}" + ("" if verdict in {"equal", NO_FILE} else f"; {verdict}")


def _plan_page(rows: Mapping[str, Row]) -> Iterator[str]:
    done = {name: row for name, row in rows.items() if "failed" not in row}
    yield (
        "*Arena* is that of `onnxtile plan` with its defaults, in bytes, at an alignment of 64; *proved* says of which orders it is the"
        " smallest. onnxsim's arena is `plan_activation_memory` of the model that it simplified; it does not align, and gives no bytes"
        " to the tensors that it leaves out, in brackets. *Same buffers* sets the planner beside the two allocators of Vela: the live"
        " ranges of whole buffers in the order of the model, at an alignment of 1. The times are the processor time of `onnxtile plan`"
        " over that of `onnxsim`, which simplifies the same file. MB are 10⁶ bytes of resident memory at most.\n"
    )
    yield head(
        "model",
        "arena",
        "proved",
        "onnxsim (left out)",
        "same buffers: plan",
        "Vela greedy",
        "Vela hillclimb",
        "time / onnxsim",
        "without proof",
        "MB",
        "onnxsim, MB",
    )
    for name, row in done.items():
        yield _plan_line(name, row)
    yield from (f"| {name} | {row['failed']} | {'| ' * 9}" for name, row in rows.items() if "failed" in row)
    yield "\n" + "\n".join(_plan_words(list(done.values())))


def _plan_line(name: str, row: Row) -> str:
    sim, vela = row["onnxsim"], row["vela"]
    theirs = "fails" if "failed" in sim else _cell(sim, "arena")
    arenas = _bold([f"{row['arena']:,}", theirs], [row["arena"], sim.get("arena")])
    left = f" ({sim['left_out']})" if "left_out" in sim else ""
    same = [row["same buffers"], *(one.get("arena") for one in vela.values())]
    offsets = _bold([f"{same[0]:,}", *(_cell(one, "arena") for one in vela.values())], same)
    used = {
        key: row["costs"].get(key, {"seconds": math.nan, "memory": math.nan}) for key in ("plan", "no proof", "onnxsim")
    }
    seconds = [_ratio(used[key]["seconds"], used["onnxsim"]["seconds"]) for key in ("plan", "no proof")]
    numbers = [used[key]["memory"] / 1e6 for key in ("plan", "onnxsim")]
    memory = _bold(["" if math.isnan(one) else f"{one:.0f}" for one in numbers], numbers)
    return line(name, arenas[0], row["proved"] or "no", arenas[1] + left, *offsets, *seconds, *memory)


def _plan_words(rows: Sequence[Row]) -> Iterator[str]:
    """Yield what the table comes to."""
    yield f"Arena beside onnxsim's: {_compared((row['arena'], row['onnxsim']['arena']) for row in rows if row['onnxsim'].get('arena'))}."
    for name in ("greedy", "hillclimb"):
        pairs = [(row["same buffers"], row["vela"][name]["arena"]) for row in rows if row["vela"][name].get("arena")]
        yield f"The same buffers beside Vela's {name}: {_compared(pairs)}."
    both = [row["costs"] for row in rows if "onnxsim" in row["costs"]]
    for key, words in (
        ("plan", "Processor time of plan, its run included, over that of onnxsim"),
        ("no proof", "Without the run"),
    ):
        yield f"{words}: median {_spread(one[key]['seconds'] / one['onnxsim']['seconds'] for one in both)}."


def _problems_page(rows: Mapping[str, Row]) -> Iterator[str]:
    tools = ("onnxtile", "MiniMalloc", "vela greedy", "vela hillclimb")
    yield (
        "The eleven problems of MiniMalloc (Moffitt, ASPLOS 2023), each to fit its capacity. Processor seconds of the whole"
        " command, of Vela those of the allocator alone, once. Its hill climb is stopped after 5 s, MiniMalloc after 60 s by the"
        " clock, of which it has a part on a loaded machine. A time counts only where the arena fits the capacity.\n"
    )
    once = sum(row.get("runs", 1) == 1 for row in rows.values())
    if once:
        yield f"In {once} rows the times are of one run.\n"
    yield head("problem", "capacity", *(part for tool in tools for part in (tool, "s")))
    for name, row in sorted(rows.items()):
        arenas = [_cell(row[tool], "arena") for tool in tools]
        times = _bold(
            [_cell(row[tool], "seconds", ".2f") if "failed" not in row[tool] else "" for tool in tools],
            [_fitting_seconds(row, tool) for tool in tools],
        )
        yield line(name, f"{row['capacity']:,}", *(part for pair in zip(arenas, times, strict=True) for part in pair))


def _fitting_seconds(row: Row, tool: str) -> float | None:
    """Return the seconds of a tool that fits the capacity: another one is no faster."""
    arena = row[tool].get("arena")
    return row[tool]["seconds"] if arena is not None and arena <= row["capacity"] else None


def _ranges_page(rows: Mapping[str, Row]) -> Iterator[str]:
    yield (
        "Each of the nine exports of the zoo with open sizes has one arena for all sizes of the range. Beside it is `shape_cost.bounds` of"
        " onnxsim, which has an arena only where it has a bound for every tensor. Of the others the number of tensors without a"
        " bound is given.\n"
    )
    yield head(
        "model",
        "arena over the range",
        "its peak",
        "onnxsim's shape_cost: arena",
        "its peak",
        "tensors without a bound",
    )
    for name, row in rows.items():
        if "failed" in row:
            yield line(name, row["failed"], "", "", "", "")
            continue
        theirs = row["shape_cost"]
        arenas = _bold([f"{row['arena']:,}", _cell(theirs, "arena")], [row["arena"], theirs.get("arena")])
        yield line(name, arenas[0], f"{row['peak']:,}", arenas[1], _cell(theirs, "peak"), _cell(theirs, "unbounded"))


def _quantised_page(rows: Mapping[str, Row]) -> Iterator[str]:
    yield (
        "Models of torchvision, timm and transformers with seeded random weights, and those of rapidocr_onnxruntime, quantised by"
        " `models/make_quantised.py` in each form. *Operators in kernels* are the nodes beside a QuantizeLinear or DequantizeLinear"
        " that stand inside a kernel of the plan; QLinear operators and MatMulNBits are one kernel already. *Ideal* is the most bytes"
        " of stored tensors that live at once in the order of the file. Results written over operands make an arena smaller than"
        " that. `tests/bench/ideal_arena.py` counts it and shares no code with the planner. *Verified*: the run in the arena is"
        " equal bit for"
        " bit. The last column is the processor time of plan, its run included, over that of onnxsim, one run of each: above 1, onnxsim"
        " takes less.\n"
    )
    yield head(*COLUMNS, words=2)
    for name, row in rows.items():
        yield from [line(name, row["failed"], *[""] * 6)] if "failed" in row else row["lines"]


def _queries_page(rows: Mapping[str, Row]) -> Iterator[str]:
    yield "Roots of matches of queries that are made from each model, and of patterns/aidge."
    yield "The benchmark gives a reason for each root that one of the tools alone finds; *unexplained* have none.\n"
    columns = {"queries": "queries", "both": "found by both", "Aidge": "only by Aidge", "onnxtile": "only by onnxtile"}
    columns |= {"unexplained": "unexplained", "not compared": "not compared"}
    yield head("model", *columns.values())
    total: Counter[str] = Counter()
    for name, row in rows.items():
        if "failed" in row:
            yield line(name, row["failed"], *[""] * (len(columns) - 1))
            continue
        counts = {key: row.get(key, 0) for key in columns}
        total.update(counts)
        yield line(name, *(f"{count:,}" for count in counts.values()))
    yield line("all", *(f"{total[key]:,}" for key in columns))


def _micro_page(rows: Mapping[str, Row]) -> Iterator[str]:
    yield (
        "Bytes. *Head* is the memory of tensors and scratch that the runtime reports, with its own greedy planner and with the plan"
        " of `onnxtile plan --emit FILE.tflm`. Random networks are of `tests.bench.measure micro`.\n"
    )
    yield head("model", "all tensors", "head, own planner", "planned bytes", "head with the plan", "outputs")
    for name, row in rows.items():
        if "failed" in row:
            yield line(name, row["failed"], *[""] * 4)
        for cells in (text.strip("| ").split(" | ") for text in row.get("lines", ())):
            numbers = [float(cells[at].replace(",", "")) if cells[at] else None for at in (4, 2)]
            yield line(*cells[:2], _bold(["", cells[2]], numbers)[1], *cells[3:])


PAGES: Mapping[str, tuple[str, Callable[[Mapping[str, Row]], Iterator[str]]]] = {
    "fuse": ("Coverage, results and price of rewriting", _fuse_page),
    "plan": ("Arenas and price of planning", _plan_page),
    "problems": ("MiniMalloc's problems", _problems_page),
    "ranges": (f"Ranges of sizes: {', '.join(RANGES)}", _ranges_page),
    "quantised": ("Quantised models", _quantised_page),
    "queries": ("Queries, beside Aidge", _queries_page),
    "micro": ("TensorFlow Lite Micro's planner", _micro_page),
}


def page(stored: Mapping[str, Row], before: str = "") -> str:
    """Return the part of the page between its marks, from the rows of each part and what is said about them.

    A part without rows keeps its section of the page as it was `before`.
    """
    machine = next(one["about"]["machine"] for one in stored.values())
    kept = {section.partition("\n")[0]: section for section in before.partition(END)[0].split("\n### ")[1:]}
    lines = [
        "## Beside the peers",
        "",
        f"`python -m tests.bench.compare` wrote this part, on {machine}.",
        "",
        "Times are processor time (user and system, all threads) of whole commands: medians of three runs in turn; long"
        " commands (above 5 s) may have run once. A ratio is of commands that took turns. All tools have their bytecode. A peer's"
        " number that is better than onnxtile's is bold, and so is a ratio above 1. `fuse` and `plan` verify what they write,"
        " unless the column says otherwise; no peer compares results in the time that is given.",
    ]
    for part, (title, write) in PAGES.items():
        if part in stored and stored[part]["rows"]:
            lines += ["", f"### {title}", "", _taken(stored[part]), "", *write(stored[part]["rows"])]
        elif title in kept:
            lines += ["", f"### {kept[title].rstrip()}"]
    return "\n".join(_short(text) for text in "\n".join(lines).split("\n")) + "\n"


def _taken(part: Row) -> str:
    """Return how many rows of a part there are of those that it has in all, when they were measured, and with what."""
    taken = [row["taken"] for row in part["rows"].values()]
    count = f"{len(taken)} of {part['about']['rows']} rows" if "rows" in part["about"] else f"{len(taken)} rows"
    dates = sorted({one["date"] for one in taken})
    commits, pythons = (
        dict.fromkeys(words) for words in zip(*(one["onnxtile"].split(", ") for one in taken), strict=True)
    )
    loads, versions = [one["load"] for one in taken], part["about"]["versions"]
    peers = f" Peers: {'; '.join(f'{name} {text}' for name, text in versions.items())}." if versions else ""
    return (
        f"{count}, measured on {' to '.join(dict.fromkeys((dates[0], dates[-1])))} with onnxtile at {', '.join(commits)} and"
        f" {', '.join(pythons)}, at a load of {min(loads):.0f} to {max(loads):.0f} (processes that want a core).{peers}"
    )


def _short(text: str) -> str:
    """Return a line of words in lines of the width of the documentation; a row of a table stays."""
    return text if text.startswith("|") else textwrap.fill(text, _WIDTH, break_long_words=False, break_on_hyphens=False)


def written(text: str, part: str) -> str:
    """Return a page with its part between the marks replaced; a page without marks gets them behind its title."""
    if BEGIN not in text:
        title, _, rest = text.partition("\n")
        text = f"{title}\n\n{BEGIN}{END}{rest}"
    return f"{text.split(BEGIN)[0]}{BEGIN}{part}{END}{text.split(END)[1]}"
