"""What each rule of the exact search and each heuristic is worth: everything, and everything but one.

    python -m tests.bench.ablations [--hard FOLDER] [--steps 200000000] [--seeds 8]

Work is counted in looks at a buffer, so the table is the same on every machine. A problem that is not solved counts with all its looks.
"""

from __future__ import annotations

import argparse
import csv
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path

from onnxtile.planning.offsets.effort import Effort
from onnxtile.planning.offsets.exact import search as restarts
from onnxtile.planning.offsets.exact.search import solve
from onnxtile.planning.offsets.exact.state import ALL_RULES, SearchRules
from onnxtile.planning.offsets.problem import Buffer, Problem, size_of
from onnxtile.planning.planner import find_planner
from onnxtile.planning.planners.best import HEURISTICS, place
from tests.bench.hard_problems import cut
from tests.bench.planners import KINDS, ROOT, rows, show

_CAPACITY = 1_048_576
_LITTLE = Effort(2_000_000, 2_000_000)
"""For the heuristics: some seconds for the exact search would hide what they find."""


@dataclass
class _Counter:
    """Counts the looks of one search, as its progress."""

    looks: int = 0

    def __call__(self, _what: str, done: int = 0, _all: int = 0) -> None:
        self.looks = done


def main() -> None:
    """Measure, and print the tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--hard", default=str(ROOT.parent / "shared" / "minimalloc"))
    parser.add_argument("--steps", type=int, default=200_000_000)
    parser.add_argument("--seeds", type=int, default=8)
    options = parser.parse_args()
    restarts.COMPILE_FROM = 0
    sets = {
        "MiniMalloc's, to fit": list(_hard(Path(options.hard))),
        "pieces of a rectangle, to fit": [_pieces(count, seed) for count in (60, 120) for seed in range(options.seeds)],
        "random, to prove the smallest": [_small(seed) for seed in range(3 * options.seeds)],
    }
    show("| without | " + " | ".join(f"{name}: solved | million looks" for name in sets) + " |", "|---|" + "---:|" * 6)
    for rule in (None, *(field.name for field in fields(SearchRules))):
        rules = ALL_RULES if rule is None else replace(ALL_RULES, **{rule: False})
        cells = [_searched(problems, rules, options.steps) for problems in sets.values()]
        show(
            f"| {rule or '(nothing)'} | "
            + " | ".join(f"{solved} | {looks / 1e6:,.1f}" for solved, looks in cells)
            + " |"
        )
    show("", "| without | gap, 100 to 500 buffers | gap, 1,000 to 10,000 buffers |", "|---|---:|---:|")
    small, large = (list(_random(counts)) for counts in ((100, 200, 500), (1_000, 3_000, 10_000)))
    for heuristic in (None, *HEURISTICS):
        kept = [name for name in HEURISTICS if name != heuristic]
        show(f"| {heuristic or '(nothing)'} | {100 * _gap(small, kept):.1f} % | {100 * _gap(large, kept):.1f} % |")


def _hard(folder: Path) -> Iterator[Problem]:
    for file in sorted(folder.glob("*.csv")):
        with file.open() as lines:
            found = [(r["id"], int(r["lower"]), int(r["upper"]), int(r["size"])) for r in csv.DictReader(lines)]
        yield _problem(found, _CAPACITY)


def _pieces(count: int, seed: int) -> Problem:
    return _problem(cut(count, 0.0, seed), 1024)


def _small(seed: int) -> Problem:
    """Return a random problem whose smallest arena is often above its peak, because some buffers are aligned."""
    draw = random.Random(seed)
    buffers = []
    for i in range(18):
        lower = draw.randrange(10)
        upper = lower + 1 + draw.randrange(6)
        buffers.append(Buffer(f"b{i}", draw.randint(1, 9), lower, upper, draw.choice([None, None, 4, 8])))
    return Problem(tuple(buffers), 1)


def _random(counts: Sequence[int]) -> Iterator[Problem]:
    for kind in KINDS.values():
        for count in counts:
            yield _problem(list(rows(kind, count, count // 10)), None)


def _problem(found: Sequence[tuple[str, int, int, int]], capacity: int | None) -> Problem:
    return Problem(tuple(Buffer(name, size, lower, upper) for name, lower, upper, size in found), 1, capacity)


def _searched(problems: Sequence[Problem], rules: SearchRules, steps: int) -> tuple[int, int]:
    """Return how many of `problems` are solved, and the looks of all."""
    solved = looks = 0
    for problem in problems:
        counter = _Counter()
        start = list(find_planner("greedy-by-size").plan(problem).offsets.values())
        # One step for a smaller arena: with a capacity, the search ends as soon as something fits.
        effort = Effort(steps if problem.capacity is None else 1, steps, progress=counter)
        found = solve(problem, start, effort, rules)
        size = size_of(problem, found.offsets)
        is_solved = found.ended == "optimal" if problem.capacity is None else size <= problem.capacity
        solved += is_solved
        looks += counter.looks if is_solved else max(counter.looks, steps)
    return solved, looks


def _gap(problems: Sequence[Problem], heuristics: Sequence[str]) -> float:
    """Return the summed gap of `problems` to their lower bounds, as a fraction of one bound."""
    sizes = ((size_of(p, place(p, _LITTLE, heuristics).offsets), p.lower_bound) for p in problems)
    return sum(size / bound - 1 for size, bound in sizes)


if __name__ == "__main__":
    main()
