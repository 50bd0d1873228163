"""Functions whose own processor time grows faster than the graph: each verb is profiled on a graph of two sizes.

    python -m tests.bench.function_growth [--shapes chain,wide] [--sizes 6000,12000] [--verbs tile,plan] [--least SECONDS]

A line names the verb and the shape, the times of a function at the two sizes in seconds, how many times as much the larger takes for a
node, and the function. 1 is linear; 2 is quadratic where the second size is twice the first. Functions below `--least` are left out.
"""

from __future__ import annotations

import argparse
import cProfile
import pstats
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx

import onnxtile
from onnxtile import api
from tests.bench.large_graphs import MAKERS

VERBS: dict[str, Callable[[onnx.ModelProto], Any]] = {
    "inspect": lambda model: api.inspect(model).to_dict(),
    "match": lambda model: api.match(model, "Tanh->Add"),
    "fuse": api.fuse,
    "lower": lambda model: api.fuse(model, lower="ort"),
    "unfuse": lambda model: api.unfuse(api.fuse(model, verify=False).model),
    "tile": lambda model: api.tile(model, max=4, conv=True),
    "plan": api.plan,
    "min-peak": lambda model: api.plan(model, order="min-peak", verify=False),
    "any": lambda model: api.plan(model, order="any", verify=False),
    "verify": lambda model: api.verify(model, model),
}
"""The verbs as they are measured, by name."""

_PACKAGE = Path(onnxtile.__file__).parent


def main() -> None:
    """Measure, and print a line for each function that grows."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--shapes", default=",".join(MAKERS))
    parser.add_argument("--sizes", default="6000,12000")
    parser.add_argument("--verbs", default=",".join(VERBS))
    parser.add_argument("--least", type=float, default=0.05, help="seconds of a function that is shown")
    parser.add_argument("--growth", type=float, default=1.3, help="growth for a node of a function that is shown")
    options = parser.parse_args()
    sizes = [int(size) for size in options.sizes.split(",")]
    for shape in options.shapes.split(","):
        for verb in options.verbs.split(","):
            small, large = (_profile(verb, shape, size) for size in sizes)
            _print(f"{verb}, {shape}", small, large, sizes[1] / sizes[0], options)


def _profile(verb: str, shape: str, size: int) -> dict[str, float]:
    """Return the seconds that each function took itself, and under "all" the sum."""
    model, profile = MAKERS[shape](size), cProfile.Profile(time.process_time)
    try:
        profile.runcall(VERBS[verb], model)
    except onnxtile.OnnxtileError as error:
        sys.stdout.write(f"{verb}, {shape}, {size:,} nodes: {error}\n")
    found: dict[str, float] = {}
    for (file, line, name), (_, _, own, _, _) in pstats.Stats(profile).stats.items():  # type: ignore[attr-defined]
        path = Path(file)
        place = path.relative_to(_PACKAGE) if path.is_relative_to(_PACKAGE) else Path(*path.parts[-2:])
        found[f"{place}:{line} {name}"] = own
    return {"all": sum(found.values()), **found}


def _print(
    what: str, small: dict[str, float], large: dict[str, float], ratio: float, options: argparse.Namespace
) -> None:
    for name, seconds in sorted(large.items(), key=lambda item: -item[1]):
        growth = seconds / (ratio * max(small.get(name, 0.0), 1e-3))
        if name == "all" or (seconds >= options.least and growth >= options.growth):
            sys.stdout.write(
                f"{what}: {small.get(name, 0.0):.2f} to {seconds:.2f} s, {growth:.2f} for a node, {name}\n"
            )
    sys.stdout.flush()


if __name__ == "__main__":
    main()
