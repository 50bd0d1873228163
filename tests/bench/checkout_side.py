"""Runs commands of one checkout of onnxtile, each in a copy of this process, for `tests.bench.compare_checkouts`.

    PYTHONPATH=CHECKOUT PYTHON -P tests/bench/checkout_side.py

A line of stdin is a command as JSON: `arguments`, the `folder` it runs in, and the most `processor_seconds`. A line of stdout tells how it
ended. The package is that of CHECKOUT, this script and what it needs of tests/ are of the checkout that compares.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import onnxtile

_BY_THE_CLOCK = 12
"""A command that waits is killed after so many times its limit of processor time."""


def main() -> None:
    """Answer each line until stdin ends."""
    sys.path.insert(0, str(Path(__file__).parents[2]))
    from tests.hostile import forked

    del sys.path[0]
    forked.import_package()
    print(json.dumps({"package": onnxtile.__file__}), flush=True)
    for line in sys.stdin:
        asked = json.loads(line)
        most = asked["processor_seconds"]
        folder = Path(asked["folder"])
        ended = forked.run(tuple(asked["arguments"]), folder, seconds=_BY_THE_CLOCK * most, processor_seconds=most)
        told = {"code": ended.code, "err": ended.err, "seconds": ended.processor_seconds}
        print(json.dumps(told), flush=True)


if __name__ == "__main__":
    main()
