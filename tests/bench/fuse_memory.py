"""Arenas of models as they are, fused, and fused with `--for-memory`: a table in Markdown of the models in which fusing costs memory.

    python -m tests.bench.fuse_memory MODEL.onnx ...

Bytes of `onnxtile plan --no-verify`, each meta-op one kernel. Models whose arena does not grow by fusing are counted, not listed.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from onnxtile import api
from onnxtile.model.load import Source


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("models", nargs="+", type=Path)
    given = parser.parse_args(arguments)
    print("| model | arena | fused | meta-ops | --for-memory | meta-ops |")
    print("|---|---:|---:|---:|---:|---:|", flush=True)
    others = 0
    for path in given.models:
        before = arena(path)
        fused = api.fuse(path, verify=False)
        if arena(fused.model) <= before:
            others += 1
            sys.stderr.write(f"{path.stem}: {before:,} bytes, no more when fused\n")
            continue
        kept = api.fuse(path, for_memory=True, verify=False)
        cells = (path.stem, f"{before:,}", f"{arena(fused.model):,}", str(fused.fused))
        print(f"| {' | '.join((*cells, f'{arena(kept.model):,}', str(kept.fused)))} |", flush=True)
    print(f"\nIn {others} other models fusing costs nothing.")


def arena(model: Source) -> int:
    """Return the bytes of the arena of a model."""
    return api.plan(model, verify=False).plan.arena_size


if __name__ == "__main__":
    main()
