"""The command `onnxtile-minimalloc`: takes the arguments of MiniMalloc, and writes the file that MiniMalloc would write.

The exit code is 0 where the buffers fit the capacity, else 1, as of MiniMalloc. (https://github.com/google/minimalloc, src/main.cc and
src/converter.cc.)
"""

from __future__ import annotations

import argparse
import csv
import io
import re
import sys
import time
from pathlib import Path
from typing import NoReturn

from onnxtile.planning.result import PlanResult
from onnxtile.system.errors import OnnxtileError, UsageError

_SWITCHES = (
    *("canonical_only", "section_inference", "dynamic_ordering", "check_dominance", "unallocated_floor"),
    *("static_preordering", "dynamic_decomposition", "monotonic_floor", "hatless_pruning"),
)
"""Switches of MiniMalloc's search, which are taken and have no effect."""
_UNITS = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_NO_ALIGNMENT, _NO_HINT, _NO_GAPS = {"1"}, {"-1"}, {""}
_OPTIONAL = {"alignment": _NO_ALIGNMENT, "hint": _NO_HINT, "gaps": _NO_GAPS}
"""Columns that MiniMalloc writes only where a row has another value than these."""
_INTERRUPTED = 130
"""The exit code that shells know for Ctrl-C."""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UsageError(message)


def main() -> None:
    """Plan a problem as MiniMalloc does; end with 0, or 1 and a line on stderr."""
    try:
        options = _parser().parse_intermixed_args(sys.argv[1:])
        start = time.monotonic()
        text = _read(options.input)
        planned = _plan(options)
        print(f"Elapsed time {time.monotonic() - start:.3f}s", file=sys.stderr)  # noqa: T201 - as MiniMalloc does
        if options.validate:
            print(f"Validation PASS, height {planned.arena_size}", file=sys.stderr)  # noqa: T201
        _write(options.output, _solution(text, planned))
    except KeyboardInterrupt:
        sys.exit(_INTERRUPTED)
    except OnnxtileError as error:
        from onnxtile.cli.streams import say
        from onnxtile.system.errors import MOST, error_line

        say(error_line(error.message, error.hint, MOST) + "\n")
        sys.exit(1)


def _parser() -> argparse.ArgumentParser:
    parser = _Parser("onnxtile-minimalloc", description=__doc__, allow_abbrev=False)
    for name, kind, default, meaning in (
        ("capacity", int, 0, "bytes of the arena"),
        ("input", str, "", "the CSV file of the problem"),
        ("output", str, "", "the CSV file to write, with the offsets"),
        ("timeout", _duration, None, "time limit, such as 5s or 1m30s; without one the search has a budget of steps"),
        ("preordering_heuristics", str, "", argparse.SUPPRESS),
    ):
        parser.add_argument(f"--{name}", f"-{name}", type=kind, default=default, help=meaning)
    for name, meaning in (
        ("validate", "say that the check of the offsets has passed; it always runs"),
        ("minimize_capacity", "search for the smallest arena within the capacity"),
        *((switch, argparse.SUPPRESS) for switch in _SWITCHES),
    ):
        flags = (f"--{name}", f"-{name}")
        parser.add_argument(*flags, nargs="?", type=_truth, const=True, default=False, help=meaning)
        off = (f"--no{name}", f"-no{name}")
        parser.add_argument(*off, dest=name, action="store_false", help=argparse.SUPPRESS)
    return parser


def _truth(text: str) -> bool:
    if text.lower() not in {"true", "t", "yes", "y", "1", "false", "f", "no", "n", "0"}:
        raise argparse.ArgumentTypeError(f"not true or false: {text!r}")
    return text.lower() in {"true", "t", "yes", "y", "1"}


def _duration(text: str) -> float | None:
    """Return the seconds of a duration as Abseil writes it, None for an endless one."""
    if text in {"inf", "+inf"}:
        return None
    parts = re.findall(r"(\d+(?:\.\d*)?|\.\d+)(ns|us|ms|s|m|h)", text, re.ASCII)
    if "".join(map("".join, parts)) != text or (not parts and text != "0"):
        raise argparse.ArgumentTypeError(f"not a duration: {text!r}")
    return sum(float(number) * _UNITS[unit] for number, unit in parts)


def _read(path: str) -> str:
    try:
        return Path(path).read_text("utf-8")
    except (OSError, UnicodeDecodeError):
        raise UsageError(f"Opening file {path} failed.") from None


def _plan(options: argparse.Namespace) -> PlanResult:
    """Return a plan within the capacity. Raises Infeasible where none was found."""
    from onnxtile.system.errors import Infeasible
    from onnxtile.verbs.flows.other_formats import plan_problem

    limit = None if options.timeout is None else f"{options.timeout:.6f}s"
    if options.capacity < 0:
        raise UsageError(f"the capacity must not be negative: {options.capacity}")
    if options.minimize_capacity or not options.capacity:
        smallest = plan_problem(options.input, search=limit)
        if smallest.arena_size <= options.capacity:
            return smallest
    if not options.capacity:  # MiniMalloc's default
        raise Infeasible(
            f"the arena needs {smallest.arena_size:,} bytes, more than its capacity of 0", hint="give --capacity=BYTES"
        )
    try:
        return plan_problem(options.input, capacity={"arena": options.capacity}, search=limit)
    except Infeasible as error:
        if any(row.get("gaps") for row in _rows(_read(options.input))):
            raise Infeasible(
                error.message, hint="gaps are not used: a buffer keeps its bytes for its whole life"
            ) from None
        raise


def _rows(text: str) -> list[dict[str, str]]:
    """Return the rows of the problem in `text`, by the names of the columns in MiniMalloc's output."""
    from onnxtile.planning.problem_plan import column

    lines = [row for row in csv.reader(io.StringIO(text.removeprefix("\ufeff")), skipinitialspace=True) if row]
    names = [column(name.strip()) for name in lines[0]] if lines else []
    return [dict(zip(names, row, strict=False)) for row in lines[1:]]


def _solution(text: str, planned: PlanResult) -> str:
    """Return MiniMalloc's output: the rows of the problem `text` in their order, with the offsets of `planned` as the last column."""
    rows = _rows(text)
    more = [name for name, usual in _OPTIONAL.items() if {row.get(name) or min(usual) for row in rows} - usual]
    lines = [["id", "lower", "upper", "size", *more, "offset"]]
    for row, buffer in zip(rows, planned.buffers, strict=True):
        life = (buffer.first, buffer.last + 1, buffer.size)
        optional = (row.get(name) or min(_OPTIONAL[name]) for name in more)
        lines.append([row["id"], *map(str, life), *optional, str(buffer.offset)])
    return "".join(f"{','.join(line)}\n" for line in lines)


def _write(path: str, text: str) -> None:
    from onnxtile.system.files import require_writable, write_whole

    if not path:  # MiniMalloc writes nowhere, and succeeds
        return
    require_writable(Path(path))
    write_whole(Path(path), text.encode())
