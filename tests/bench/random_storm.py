"""Asks the properties of the random models of many seeds: `python -m tests.bench.random_storm 0 100000 --jobs 2`."""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from multiprocessing import Pool
from typing import Any

from tests.random_graphs import drawing
from tests.random_graphs.asking import ALL, Fault, faults
from tests.random_graphs.generator import FURTHER_OPSETS, OLDEST_AND_NEWEST, OPSETS
from tests.random_graphs.ranges import range_faults


def _all_faults(seed: int, only: Sequence[str | None], **how: Any) -> list[Fault]:
    return [fault for name in only for fault in faults(seed, name, **how)]


def _found(seeds: range, jobs: int, ask: Callable[[int], list[Fault]]) -> Iterator[list[Fault]]:
    if jobs == 1:
        yield from map(ask, seeds)
        return
    with Pool(jobs) as pool:
        yield from pool.imap(ask, seeds, 4)


def main() -> int:
    """Run, print each fault and the counts; return 1 where there is a fault."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("first", type=int)
    parser.add_argument("end", type=int)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--most", type=int, default=18, help="groups of nodes in a model")
    parser.add_argument("--further-opsets", action="store_true", help=f"models of the opsets {FURTHER_OPSETS}")
    parser.add_argument("--further", action="store_true", help=f"further kinds of values, opsets {OLDEST_AND_NEWEST}")
    parser.add_argument("--drawing", action="store_true", help=f"random operators, opsets {drawing.OPSETS}")
    parser.add_argument("--only", action="append", choices=sorted(ALL), help="ask only this property")
    parser.add_argument("--ranges", action="store_true", help="models over ranges of sizes, with alignments and states")
    given = parser.parse_args()
    opsets = FURTHER_OPSETS if given.further_opsets else OLDEST_AND_NEWEST if given.further else OPSETS
    opsets = drawing.OPSETS if given.drawing else opsets
    how = {
        "only": given.only or [None],
        "most": given.most,
        "opsets": opsets,
        "further": given.further,
        "drawing": given.drawing,
    }
    seeds, counts, start = range(given.first, given.end), Counter[str](), time.monotonic()
    ask = range_faults if given.ranges else partial(_all_faults, **how)
    for done, found in enumerate(_found(seeds, given.jobs, ask), 1):
        for seed, name, text in found:
            counts[f"{name}: {text[:50]}"] += 1
            print(f"{seed} {name}: {text}", flush=True)
        if done % 100 == 0:
            print(
                f"# {done} models, {counts.total()} faults, {time.monotonic() - start:.0f} s",
                file=sys.stderr,
                flush=True,
            )
    print(f"{len(seeds)} models, {counts.total()} faults, {time.monotonic() - start:.0f} s")
    for text, count in counts.most_common():
        print(f"{count:6} {text}")
    return int(bool(counts))


if __name__ == "__main__":
    sys.exit(main())
