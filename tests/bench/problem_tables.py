"""Tables of problems without a model: random ones, MiniMalloc's, and problems as hard as these.

Times are of the whole command `plan PROBLEM.csv`, from the start of Python to the report, the check of the plan included.
"""

from __future__ import annotations

import csv
import random
import tempfile
from argparse import Namespace
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from tests.bench.commands import SHARED, planned, size_of
from tests.bench.tables import Rows, Table, numbers

Row: TypeAlias = tuple[str, int, int, int]
"""The id, lower, upper and size of a buffer."""
Piece: TypeAlias = tuple[int, int, int, int]
"""Of a rectangle that is cut up: the steps from and to, the bytes from and to."""
_CAPACITY = 1_048_576
_ALIGNMENT = 64


@dataclass(frozen=True)
class Kind:
    """A way to draw the life (in steps, given their mean) and the size (in bytes) of a buffer."""

    life: Callable[[random.Random, float], float]
    size: Callable[[random.Random], float]


KINDS = {
    "uniform": Kind(lambda r, mean: r.uniform(0, 2 * mean), lambda r: r.uniform(1, 10**6)),
    "exponential": Kind(lambda r, mean: r.expovariate(1 / mean), lambda r: 2 ** r.uniform(4, 22)),
    "heavy tails": Kind(lambda r, mean: r.uniform(0, 2 * mean), lambda r: min(1000 * r.paretovariate(1.1), 1e9)),
    "lognormal": Kind(lambda r, mean: mean * r.lognormvariate(-0.5, 1), lambda r: r.lognormvariate(10, 2)),
    "short and long": Kind(
        lambda r, mean: r.uniform(0, 3) if r.random() < 0.9 else r.uniform(0, 20 * mean),
        lambda r: 2 ** r.uniform(6, 20),
    ),
    "powers of two": Kind(lambda r, mean: r.expovariate(1 / mean), lambda r: 2 ** r.randrange(6, 20)),
}


def rows(kind: Kind, count: int, overlaps: int, seed: int = 0) -> Iterator[tuple[str, int, int, int]]:
    """Yield id, lower, upper and size of `count` buffers, each of which meets about `overlaps` others."""
    draw = random.Random(seed)
    for i in range(count):
        lower = draw.randrange(count)
        yield f"b{i}", lower, lower + 1 + int(kind.life(draw, overlaps / 2)), 1 + int(kind.size(draw))


def random_problems(given: Namespace) -> Rows:
    """Yield how near to the lower bound the plan of each random problem comes. A first run lets numba compile what it then keeps."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "problem.csv"
        write_problem(file, rows(KINDS["uniform"], 10_000, 2_000))
        planned(file, is_plain=given.without_numba)
        for kind in given.kinds.split(","):
            for count in numbers(given.sizes):
                for mean in (mean for mean in numbers(given.overlaps) if mean < count):
                    write_problem(file, rows(KINDS[kind], count, mean))
                    plan, seconds = planned(file, is_plain=given.without_numba)
                    gap = size_of(plan) / plan["lower_bound"] - 1
                    yield kind, count, mean, f"{100 * gap:.2f} %", seconds, plan["ended"]


def write_problem(file: Path, table: Iterable[Row]) -> None:
    """Write the id, lower, upper and size of each buffer into `file`."""
    with file.open("w") as lines:
        lines.write("id,lower,upper,size\n")
        lines.writelines(",".join(map(str, row)) + "\n" for row in table)


def hard_problems(given: Namespace) -> Rows:
    """Yield whether each of MiniMalloc's problems fits its capacity, each of these changed, and rectangles cut up."""
    with tempfile.TemporaryDirectory() as folder:
        for word, buffers, capacity, alignment in _problems(given):
            file = Path(folder) / "problem.csv"
            write_problem(file, buffers)
            options = ("--capacity", capacity, "--alignment", alignment)
            plan, seconds = planned(file, *options, is_plain=given.without_numba)
            yield word, len(buffers), bool(plan), seconds


def _problems(given: Namespace) -> Iterator[tuple[str, Sequence[Row], int, int]]:
    for path in sorted((SHARED / "minimalloc").glob(f"[{given.names}]*.csv")) if given.names else ():
        with path.open() as lines:
            rows = [(r["id"], int(r["lower"]), int(r["upper"]), int(r["size"])) for r in csv.DictReader(lines)]
        for seed in range(given.seeds):
            for word, changed, capacity, alignment in variants(rows, random.Random(seed)):
                yield f"{path.name[0]}, {word}", changed, capacity, alignment
    for count in map(int, filter(None, given.counts.split(","))):
        for missing in (0.0, 0.005, 0.01, 0.02, 0.03):
            for seed in range(given.seeds):
                yield f"cut up, {100 * missing:g} % missing", cut(count, missing, seed), 1024, 1


def variants(rows: Sequence[Row], draw: random.Random) -> Iterator[tuple[str, Sequence[Row], int, int]]:
    """Yield problems that have a plan because `rows` has one in `_CAPACITY` bytes: a word, the rows, the capacity, the alignment."""
    end = max(upper for _, _, upper, _ in rows)
    mirrored = [(name, end - upper, end - lower, size) for name, lower, upper, size in rows]
    yield "as it is", rows, _CAPACITY, 1
    yield "mirrored", mirrored, _CAPACITY, 1
    shuffled = draw.sample(rows, len(rows))
    names = draw.sample([name for name, *_ in rows], len(rows))
    yield "shuffled", [(name, *row[1:]) for name, row in zip(names, shuffled, strict=True)], _CAPACITY, 1
    yield "three times as large", [(name, low, up, 3 * size) for name, low, up, size in mirrored], 3 * _CAPACITY, 1
    yield "aligned", rows, _CAPACITY, _ALIGNMENT
    # The order of births and deaths stays, the time between them does not.
    times = sorted({time for _, lower, upper, _ in rows for time in (lower, upper)})
    moved = dict(zip(times, sorted(draw.sample(range(10**6), len(times))), strict=True))
    yield "stretched", [(name, moved[low], moved[up], size) for name, low, up, size in rows], _CAPACITY, 1
    later = [(f"{name} later", low + end, up + end, size) for name, low, up, size in mirrored]
    yield "two in a row", [*rows, *later], _CAPACITY, 1


def cut(count: int, missing: float, seed: int, steps: int = 1024, size: int = 1024) -> list[Row]:
    """Return about `count` pieces of a rectangle of `size` bytes and `steps`, without that part of them that is `missing`.

    Half of the cuts are pinwheels of five pieces, so that no line from edge to edge takes it apart again.
    """
    draw = random.Random(seed)
    pieces: list[Piece] = [(0, steps, 0, size)]
    while len(pieces) < count:
        chosen = max(draw.sample(range(len(pieces)), min(len(pieces), 3)), key=lambda i: _area(pieces[i]))
        pieces += _parts(pieces.pop(chosen), draw)
    draw.shuffle(pieces)
    kept = pieces[int(len(pieces) * missing) :]
    return [(f"b{i}", lower, upper, top - bottom) for i, (lower, upper, bottom, top) in enumerate(kept)]


def _area(piece: Piece) -> int:
    lower, upper, bottom, top = piece
    return (upper - lower) * (top - bottom)


def _parts(piece: Piece, draw: random.Random) -> list[Piece]:
    lower, upper, bottom, top = piece
    if min(upper - lower, top - bottom) > 2 and draw.random() < 0.5:
        a, b = sorted(draw.sample(range(lower + 1, upper), 2))
        c, d = sorted(draw.sample(range(bottom + 1, top), 2))
        if draw.random() < 0.5:
            return [(lower, a, bottom, d), (lower, b, d, top), (b, upper, c, top), (a, upper, bottom, c), (a, b, c, d)]
        return [(lower, b, bottom, c), (b, upper, bottom, d), (a, upper, d, top), (lower, a, c, top), (a, b, c, d)]
    if draw.random() < 0.5 and upper - lower > 1:
        at = draw.randrange(lower + 1, upper)
        return [(lower, at, bottom, top), (at, upper, bottom, top)]
    if top - bottom > 1:
        at = draw.randrange(bottom + 1, top)
        return [(lower, upper, bottom, at), (lower, upper, at, top)]
    return [piece]


_NUMBA = {"--without-numba": {"action": "store_true"}}
TABLES = {
    "random-problems": Table(
        "random problems of many buffers: how near to the bound, and how long",
        ("lives and sizes", "buffers", "overlaps", "over the bound", "s", "ended by"),
        random_problems,
        models=False,
        options=_NUMBA
        | {
            "--sizes": {"default": "1000,10000,100000"},
            "--overlaps": {"default": "20,200,2000", "help": "how many others a buffer meets on average"},
            "--kinds": {"default": ",".join(KINDS)},
        },
    ),
    "hard-problems": Table(
        "MiniMalloc's problems, these turned, shuffled, scaled and joined, and rectangles cut up",
        ("problem", "buffers", "fits", "s"),
        hard_problems,
        models=False,
        options=_NUMBA
        | {
            "--names": {"default": "A-K"},
            "--seeds": {"type": int, "default": 1},
            "--counts": {"default": "100,200,300", "help": "pieces of a rectangle"},
        },
    ),
}
