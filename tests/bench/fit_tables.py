"""The tables of docs/fit.md: what nets take when they are to fit a memory, and what that costs.

    python -m tests.bench.measure fit MODEL ... --rows FILE [--within CAPACITY,BUDGET ...] [--io PLACE ...] [--limit SECONDS] [--docs]
    python -m tests.bench.measure fit-c MODEL ... --rows FILE [--on PLACE] [--docs]
    python -m tests.bench.measure fit-costs|fit-published --rows FILE [--docs]

Each row is a line of JSON in FILE, written when it is measured; a row that is there is not measured again. So a run that was ended goes on,
and the tables show what there is. CAPACITY is a number of bytes, "half" or "quarter" of the arena of the model as it is, or "smallest";
BUDGET is that of `--budget`. `export_edge_nets.py` writes the nets.
"""

from __future__ import annotations

import json
import sys
import tempfile
from argparse import Namespace
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from onnxtile.model.feeds import sample_feeds
from onnxtile.model.load import load
from onnxtile.shapes.resolve import resolve
from tests.bench import firmware_tables, firmware_target
from tests.bench.commands import OWN, ROOT, Ran, Row, ran, size_of
from tests.bench.growth_tables import seconds_in_turn
from tests.bench.peers import own_version
from tests.bench.subjects import Subject
from tests.bench.tables import Rows, Table

WITHIN = ("half,25%", "quarter,25%", "smallest,0%", "smallest,10%", "smallest,25%")
PLACES = {"outputs": "outside", "inside": "inside"}
"""Where the inputs are, as `--io` says it and as the tables do."""
_PARTS = {"half": 2, "quarter": 4}
_HOST, _BOARD = "x86-64-c", "cortex-m7"
"""The targets of this machine, and of the emulated board, whose programs are measured."""
_TURNS = 7
"""Runs of each model in onnxruntime."""

PUBLISHED = {
    ("mobilenet_100_224_int8", "163840,10%"): ("MCUNetV2, arXiv:2110.15352", 172_000, "10%"),
    ("mobilenet_035_144_int8", "49152,1.9%"): ("msf-CNN", 83_133, "1.9%"),
    ("mobilenet_035_144_int8", "25800,26%"): ("msf-CNN", 25_803, "26%"),
    ("mobilenet_035_144_int8", "15199,39%"): ("msf-CNN", 15_199, "39%"),
}
"""By net and CAPACITY,BUDGET: who published an arena in bytes of int8, and its extra multiply-accumulates."""


def fit(given: Namespace) -> Rows:
    """Measure what is not in the file of rows, and yield the arenas of each net: of --within for each place of --io.

    Every result is run beside the original and inside its arena. A row is ended after --limit seconds of the processor.
    """
    rows = _kept(given.rows)
    with tempfile.TemporaryDirectory() as folder:
        for subject in given.models:
            for place in given.io:
                for within in given.within or WITHIN:
                    key = (subject.name, place, within)
                    if key not in rows:
                        before = _before(rows, subject.name, place)
                        rows[key] = _fitted(subject, place, within, before, Path(folder), given.limit)
                        _keep(given.rows, key, rows[key])
    for model, place in dict.fromkeys((model, place) for model, place, _ in rows if place in PLACES):
        if any((model, place, within) not in rows for within in given.within or WITHIN):
            continue  # not all of its rows are measured yet
        arenas = (_arena(rows.get((model, place, within), {})) for within in WITHIN)
        yield model, PLACES[place], _before(rows, model, place) or "", *arenas
    yield from _measured_at(given.rows)


def _before(rows: Mapping[tuple[str, str, str], Row], model: str, place: str) -> int | None:
    """Return the arena of a model as it is, where a row has it."""
    return next((row["before"] for key, row in rows.items() if key[:2] == (model, place) and "before" in row), None)


def _arena(row: Row) -> object:
    """Return the arena of a row; in brackets the smallest that was reached where it does not fit."""
    return f"({row['reached']:,})" if "reached" in row else row.get("failed", row.get("arena", ""))


def fit_costs(given: Namespace) -> Rows:
    """Yield what each net costs within a part of its arena, with its inputs outside."""
    for (model, place, within), row in _kept(given.rows).items():
        capacity = within.partition(",")[0]
        if place == "outputs" and capacity in _PARTS and "arena" in row:
            extra = f"{100 * (row['macs'] / row['macs before'] - 1):+.1f}%" if row["macs before"] else ""
            costs = (
                row[name] for name in ("nodes", "kernels", "copied", "estimated", "onnxruntime", "equal", "seconds")
            )
            yield model, capacity, row["arena"], extra, *costs
    yield from _measured_at(given.rows)


def fit_published(given: Namespace) -> Rows:
    """Yield published arenas of int8 networks, and those of the same networks here; a published one that is smaller is bold."""
    rows = _kept(given.rows)
    for (model, within), (tool, arena, extra) in PUBLISHED.items():
        if (model, "outputs", within) not in rows:
            continue
        row = rows[model, "outputs", within]
        own = f"{100 * (row['macs'] / row['macs before'] - 1):.1f}%" if "macs" in row else ""
        there = f"**{arena:,}**" if arena < (row.get("arena") or row.get("reached") or 0) else arena
        yield model, tool, there, extra, within.partition(",")[2], _arena(row), own, row.get("nodes", "")
    yield from _measured_at(given.rows)


def _kept(file: Path) -> dict[tuple[str, str, str], Row]:
    """Return the rows of a file by model, place of the inputs or of the program, and CAPACITY,BUDGET."""
    lines = map(json.loads, file.read_text("utf-8").splitlines()) if file.exists() else ()
    return {(row["model"], row["place"], row["within"]): row for row in lines}


def _measured_at(file: Path) -> Iterable[str]:
    """Return the sentence that says at which commits the rows of a file were measured, where they say it."""
    lines = map(json.loads, file.read_text("utf-8").splitlines()) if file.exists() else ()
    commits = sorted({row["onnxtile"].partition(",")[0] for row in lines if "onnxtile" in row})
    return [f"Measured at {', '.join(commits)}."] if commits else []


def _keep(file: Path, key: tuple[str, str, str], row: Row) -> None:
    told = dict(zip(("model", "place", "within"), key, strict=True)) | row | {"onnxtile": own_version()}
    with file.open("a", encoding="utf-8") as lines:
        lines.write(json.dumps(told) + "\n")


def _fitted(subject: Subject, place: str, within: str, before: int | None, folder: Path, limit: int) -> Row:
    """Return the row of one command; `before` is the arena of the model as it is, where that is known."""
    capacity, _, budget = within.rpartition(",")
    if capacity in _PARTS:
        before = before or _size_before(subject, place, folder)
        capacity = str(before // _PARTS[capacity])
    result = folder / "fitted.onnx"
    words = ("--capacity", capacity, "--budget", budget, "--io", place, "--target", _BOARD)
    done, report = _told(subject, folder, words, limit)
    if report is None:
        return {"failed": f"over {limit} s" if done.code < 0 else done.reason, "seconds": done.seconds}
    old, new = report["before"], report["after"]
    if done.code:
        return {"before": old["arena"], "reached": new["arena"], "seconds": done.seconds}
    return {
        "before": old["arena"],
        "arena": new["arena"],
        "macs before": old["macs"],
        "macs": new["macs"],
        "nodes": new["nodes"],
        "kernels": distinct_kernels(result),
        "copied": new["copied"],
        "estimated": new["seconds"] / old["seconds"],
        "onnxruntime": _measured(subject, result),
        "equal": report["verdict"]["equal"],
        "seconds": done.seconds,
    }


def _told(subject: Subject, folder: Path, words: Iterable[object], limit: int = 0) -> tuple[Ran, Row | None]:
    """Fit a model into a file of the folder. Return how that ended, and the report; None where there is none."""
    report = folder / "fitted.json"
    report.unlink(missing_ok=True)
    files = ("-q", "--force", "--json", report, "-o", folder / "fitted.onnx")
    command = (sys.executable, *OWN, "fit", subject.path, *words, *files, *subject.options)
    done = ran(("sh", "-c", 'ulimit -t "$0"; exec "$@"', limit or "unlimited", *command))
    return done, json.loads(report.read_text()) if report.exists() and report.stat().st_size else None


def _size_before(subject: Subject, place: str, folder: Path) -> int:
    """Return the arena in bytes of the model as it is. Raises SystemExit where it is not planned."""
    done, report = _told(subject, folder, ("--capacity", 2**40, "--io", place, "--dry-run", "--no-verify"))
    if report is None:
        raise SystemExit(f"{subject.path}: {done.reason}")
    size: int = report["before"]["arena"]
    return size


def distinct_kernels(path: Path) -> int:
    """Return how many nodes of a model differ in their operator, their attributes, or the sizes of their operands and results."""
    model = load(path)
    shapes = resolve(model)
    return len(
        {
            (
                node.op_identifier(),
                tuple(sorted((name, str(value.value)) for name, value in node.attributes.items())),
                tuple(
                    None if value is None else tuple(shapes.sizes(value) or ())
                    for value in (*node.inputs, *node.outputs)
                ),
            )
            for node in model.graph
        }
    )


def _measured(subject: Subject, result: Path) -> float:
    """Return the time of the quickest run of `result` over that of the model, in onnxruntime with one thread."""
    # The sizes of the result are bound.
    feeds = sample_feeds(load(result), lambda value: None if value.shape is None else value.shape.numpy())
    whole, fitted = seconds_in_turn([path.read_bytes() for path in (subject.path, result)], feeds, _TURNS)
    return min(fitted) / min(whole)


# Programs in C, of a model as it is and of the model that fits half of its arena.


def fit_c(given: Namespace) -> Rows:
    """Measure what is not in the file of rows, and yield the time of programs in C that fit half, estimated and measured.

    On this machine the time is that of the processor, the least of runs in turn; on the emulated board it is a number of instructions.
    """
    rows = _kept(given.rows)
    with tempfile.TemporaryDirectory() as folder:
        for subject in given.models:
            key = (subject.name, given.on, "c")
            if key not in rows:
                rows[key] = _c_row(subject, given.on, Path(folder))
                _keep(given.rows, key, rows[key])
    for (model, place, within), row in rows.items():
        if within == "c" and place in (_HOST, _BOARD):
            yield (
                model,
                place,
                *(row.get(name, row.get("failed", "")) for name in ("arena", "whole", "estimated", "measured")),
            )
    yield from _measured_at(given.rows)


def _c_row(subject: Subject, target: str, folder: Path) -> Row:
    """Return the time of a program that fits half over that of the whole: by the speeds of `target`, and measured there."""
    given = firmware_tables.of_file(subject.path)
    places = [folder / name for name in ("whole", "half")]
    for place in places:
        place.mkdir(exist_ok=True)
    written = (
        "--no-verify",
        "-o",
        folder / "written.onnx",
    )  # the programs run beside onnxruntime when they are written
    try:
        whole, plan = firmware_tables.program_of(given, places[0], ("plan", subject.path, *written))
        asked = ("--capacity", size_of(plan) // 2, "--budget", "25%", "--target", target)
        half, report = firmware_tables.program_of(given, places[1], ("fit", subject.path, *asked, *written))
        speeds = _speeds(list(zip((whole, half), places, strict=True)), given.inputs, target)
    except firmware_target.CannotRun as error:
        return {"failed": str(error)[:100]}
    estimated = report["after"]["seconds"] / report["before"]["seconds"]
    return {
        "arena": report["after"]["arena"],
        "whole": speeds[0],
        "estimated": estimated,
        "measured": speeds[1] / speeds[0],
    }


def _speeds(
    programs: Sequence[tuple[firmware_target.Program, Path]], inputs: Mapping[str, Any], target: str
) -> list[float]:
    """Return the milliseconds of a run of each program here, or its instructions in millions on the board."""
    if target == _HOST:
        return firmware_target.milliseconds(programs, inputs)
    figures = [firmware_target.measured(program, inputs, folder)[0] for program, folder in programs]
    return [(found.instructions or 0) / 1e6 for found in figures]


_ROWS = {"--rows": {"type": Path, "required": True, "metavar": "FILE", "help": "of rows, one a line"}}
_PAGE = ROOT / "docs" / "fit.md"
TABLES = {
    "fit": Table(
        "arenas of fit, within a capacity and a budget of further multiply-accumulates",
        ("net", "inputs", "as it is", "half", "a quarter", "smallest, 0%", "10%", "25%"),
        fit,
        words=2,
        page=_PAGE,
        options={
            **_ROWS,
            "--within": {"action": "append", "default": [], "metavar": "CAPACITY,BUDGET"},
            "--io": {"nargs": "+", "default": list(PLACES), "help": "places of the inputs, as fit takes them"},
            "--limit": {"type": int, "default": 300, "help": "seconds of the processor for one command"},
        },
    ),
    "fit-costs": Table(
        "what nets cost within a half and a quarter of their arena, from the rows of fit",
        (
            *("net", "within", "arena", "extra MACs", "nodes", "distinct kernels", "copied bytes", "time, estimated"),
            *("time, onnxruntime", "equal", "seconds"),
        ),
        fit_costs,
        words=2,
        models=False,
        page=_PAGE,
        options=_ROWS,
    ),
    "fit-published": Table(
        "published arenas of int8 networks, and those of the same networks here, from the rows of fit",
        ("net", "published by", "arena there", "extra MACs there", "budget", "arena", "extra MACs", "nodes"),
        fit_published,
        words=2,
        models=False,
        page=_PAGE,
        options=_ROWS,
    ),
    "fit-c": Table(
        "time of programs in C that fit half of their arena, over that of the whole: estimated and measured",
        ("net", "on", "arena", "whole: ms, or million instructions", "time, estimated", "time, measured"),
        fit_c,
        words=2,
        page=_PAGE,
        options={**_ROWS, "--on": {"choices": [_HOST, _BOARD], "default": _HOST, "help": "where the programs run"}},
    ),
}
