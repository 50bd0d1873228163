"""Runs commands on mutants, one process each, and prints what was found: `python -m tests.hostile.mutants --count 20000`.

`--seed N` runs one mutant again and keeps its folder.
"""

from __future__ import annotations

import argparse
import atexit
import json
import shlex
import shutil
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from tests.hostile import forked
from tests.hostile.cases import Case, case
from tests.hostile.judge import faults

PATIENCE = 400.0
"""Seconds until a command is killed that waits: more than it may take, since other work may run beside it."""


def judged(seed: int, place: Path, *, real: bool = True) -> tuple[Case, forked.Ended, list[str]]:
    """Run the mutant of `seed` in an empty folder of `place`; return it, how it ended, and its faults."""
    shutil.rmtree(place, ignore_errors=True)
    made = case(seed, real=real)
    place.mkdir(parents=True)
    (place / "outside.bin").write_bytes(bytes(4096))
    made.write(place / "in")
    ended = forked.run(made.arguments, place / "in", seconds=PATIENCE)
    return made, ended, faults(made, place / "in", ended)


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def main() -> None:
    """Run the mutants that the options name; end with 1 where one has a fault."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=20_000, help="mutants")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--seconds", type=float, default=1e9, help="begin none after so long")
    parser.add_argument("--seed", type=int, help="run this one alone, and keep its folder")
    parser.add_argument("--log", type=Path, help="a file for a line of JSON for each fault")
    given = parser.parse_args()
    forked.warm_up()
    if given.seed is not None:
        _one(given.seed)
        return
    place = Path(tempfile.mkdtemp(prefix="onnxtile-mutants."))
    atexit.register(shutil.rmtree, place, ignore_errors=True)
    codes, found, kinds, start, longest = Counter[int](), Counter[str](), Counter[str](), time.monotonic(), 0.0
    for seed in range(given.first, given.first + given.count):
        if time.monotonic() - start > given.seconds:
            break
        made, ended, wrong = judged(seed, place / "mutant")
        codes[ended.code] += 1
        kinds[made.kind] += 1
        found.update({one.partition(":")[0] for one in wrong})
        longest = max(longest, ended.processor_seconds)
        if wrong:
            _tell(seed, made, ended, wrong, given.log)
        if sum(codes.values()) % 500 == 0:
            _say(f"{sum(codes.values())} mutants in {time.monotonic() - start:.0f} s")
    _say(f"{sum(codes.values())} mutants, seeds from {given.first}, in {time.monotonic() - start:.0f} s")
    _say(
        f"exit codes: {dict(sorted(codes.items()))}; kinds: {dict(sorted(kinds.items()))}; longest {longest:.1f} s of processor"
    )
    _say(f"faults: {dict(found.most_common()) or 'none'}")
    sys.exit(1 if found else 0)


def _one(seed: int) -> None:
    place = Path(tempfile.mkdtemp(prefix=f"onnxtile-mutant-{seed}.")) / "mutant"
    made, ended, wrong = judged(seed, place)
    _say(f"{place / 'in'}: onnxtile {shlex.join(made.arguments)}")
    _say(
        f"exit {ended.code}, {ended.processor_seconds:.1f} s, {ended.peak_bytes / 2**20:.0f} MiB\n{ended.out[-2000:]}\n{ended.err!r}"
    )
    _say(f"faults: {wrong or 'none'}")


def _tell(seed: int, made: Case, ended: forked.Ended, wrong: list[str], log: Path | None) -> None:
    command = shlex.join(made.arguments)[:300]
    _say(f"seed {seed}: {made.kind} {made.base}: {command!a}: {wrong}: {ended.err[:300]!a}")
    if log is not None:
        with log.open("a") as file:
            file.write(
                json.dumps(
                    {
                        "seed": seed,
                        "kind": made.kind,
                        "base": made.base,
                        "command": command,
                        "faults": wrong,
                        "err": ended.err[:2000],
                    }
                )
                + "\n"
            )


if __name__ == "__main__":
    main()
