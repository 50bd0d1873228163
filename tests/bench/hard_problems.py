"""Problems like MiniMalloc's: its own turned, shuffled, scaled and joined, and rectangles cut up that have to be put together again.

    python -m tests.bench.hard_problems [--hard FOLDER] [--seeds 1] [--counts 100,200,300] [--without-numba]

Each is planned by `onnxtile plan PROBLEM.csv --capacity BYTES`. Times are processor time of the whole command, as in tests.bench.planners.
"""

from __future__ import annotations

import argparse
import csv
import random
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.bench.planners import ROOT, plan_file, show, write_problem

Row = tuple[str, int, int, int]
"""The id, lower, upper and size of a buffer."""

Piece = tuple[int, int, int, int]
"""Of a rectangle that is cut up: the steps from and to, the bytes from and to."""

_CAPACITY = 1_048_576
_ALIGNMENT = 64


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


def main() -> None:
    """Plan every problem, and print a table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--hard", default=str(ROOT.parent / "shared" / "minimalloc"))
    parser.add_argument("--names", default="ABCDEFGHIJK")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--counts", default="100,200,300")
    parser.add_argument("--without-numba", action="store_true")
    options = parser.parse_args()
    show("| problem | buffers | fits | s |", "|---|---:|---|---:|")
    with tempfile.TemporaryDirectory() as folder:
        for word, rows, capacity, alignment in _problems(options):
            file = Path(folder) / "problem.csv"
            write_problem(file, rows)
            more = ("--capacity", str(capacity), "--alignment", str(alignment))
            plan, seconds = plan_file(file, options.without_numba, *more)
            show(f"| {word} | {len(rows)} | {'yes' if plan else 'no'} | {seconds:.1f} |")


def _problems(options: argparse.Namespace) -> Iterator[tuple[str, Sequence[Row], int, int]]:
    for path in sorted(Path(options.hard).glob("*.csv")) if options.hard else []:
        if path.name[0] not in options.names:
            continue
        with path.open() as lines:
            rows = [(r["id"], int(r["lower"]), int(r["upper"]), int(r["size"])) for r in csv.DictReader(lines)]
        for seed in range(options.seeds):
            for word, changed, capacity, alignment in variants(rows, random.Random(seed)):
                yield f"{path.name[0]}, {word}", changed, capacity, alignment
    for count in map(int, filter(None, options.counts.split(","))):
        for missing in (0.0, 0.005, 0.01, 0.02, 0.03):
            for seed in range(options.seeds):
                yield f"cut up, {100 * missing:g} % missing", cut(count, missing, seed), 1024, 1


if __name__ == "__main__":
    main()
