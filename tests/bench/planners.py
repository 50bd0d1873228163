"""How near to the lower bound `onnxtile plan PROBLEM.csv` comes, and how long it takes: random problems, and MiniMalloc's.

    python -m tests.bench.planners [--sizes 1000,10000,100000] [--overlaps 20,200,2000] [--kinds NAME,...] [--hard FOLDER] [--without-numba]

Times are the processor time of the whole command, from the start of Python to the report, the check of the plan included; a first run,
which is not counted, lets numba compile what it then keeps beside the source. `--hard ''` leaves MiniMalloc's problems out.
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent.parent

_WITHOUT_NUMBA = "import sys; sys.modules['numba'] = None; from onnxtile.cli import main; main()"


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


def main() -> None:
    """Measure, and print two tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--sizes", default="1000,10000,100000")
    parser.add_argument("--overlaps", default="20,200,2000")
    parser.add_argument("--kinds", default=",".join(KINDS))
    parser.add_argument("--hard", default=str(ROOT.parent / "shared" / "minimalloc"))
    parser.add_argument("--without-numba", action="store_true")
    options = parser.parse_args()
    sizes, overlaps = ([int(n) for n in text.split(",")] for text in (options.sizes, options.overlaps))
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "problem.csv"
        write_problem(file, rows(KINDS["uniform"], 10_000, 2_000))
        plan_file(file, options.without_numba)
        show(
            "| lives and sizes | buffers | overlaps | over the bound | s | ended by |", "|---|---:|---:|---:|---:|---|"
        )
        for kind in options.kinds.split(","):
            for count in sizes:
                for mean in (d for d in overlaps if d < count):
                    write_problem(file, rows(KINDS[kind], count, mean))
                    plan, seconds = plan_file(file, options.without_numba)
                    gap = plan["arenas"][0]["size"] / plan["lower_bound"] - 1
                    show(f"| {kind} | {count:,} | {mean:,} | {100 * gap:.2f} % | {seconds:.1f} | {plan['ended']} |")
    problems = sorted(Path(options.hard).glob("*.csv")) if options.hard else []
    if problems:
        show("", "| problem | arena | s |", "|---|---:|---:|")
    for path in problems:
        plan, seconds = plan_file(path, options.without_numba, "--capacity", path.name.split(".")[1])
        size = f"{plan['arenas'][0]['size']:,}" if plan else "none fits"
        show(f"| {path.name} | {size} | {seconds:.1f} |")


def write_problem(file: Path, table: Iterable[tuple[str, int, int, int]]) -> None:
    """Write the id, lower, upper and size of each buffer into `file`."""
    with file.open("w") as lines:
        lines.write("id,lower,upper,size\n")
        lines.writelines(",".join(map(str, row)) + "\n" for row in table)


def plan_file(file: Path, is_plain: bool, *more: str) -> tuple[dict[str, Any], float]:
    """Return the plan as JSON (nothing if none fits) and the processor time of the command."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    start = ["-c", _WITHOUT_NUMBA] if is_plain else ["-m", "onnxtile"]
    command = [sys.executable, *start, "plan", str(file), *more, "-q", "--json", "-"]
    done = subprocess.run(command, capture_output=True, check=False, cwd=ROOT)
    if done.returncode not in (0, 1):
        raise SystemExit(done.stderr.decode())
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return (json.loads(done.stdout) if done.returncode == 0 else {}), seconds


def show(*lines: str) -> None:
    """Print these lines at once."""
    sys.stdout.write("\n".join(lines) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
