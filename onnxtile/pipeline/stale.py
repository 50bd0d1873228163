"""Files of an earlier run, which must not be taken for those of this one."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from onnxtile.paths import real


def remove_stale(files: Sequence[Path], source: Path) -> None:
    """Remove those of `files` that an earlier run wrote for the model `source`: its report, the second of `files`, says which.

    Weights that lie in a file beside a removed model go with it.
    """
    target, report, *_ = files
    written = {real(path) for path in _written(report)}
    for path in (target, *files[2:]):
        if real(path) in written and real(path) != real(source):
            path.unlink(missing_ok=True)
            for weights in path.parent.glob(f"{path.name}.data*") if path == target else ():
                weights.unlink(missing_ok=True)


def _written(report: Path) -> list[Path]:
    """Return the files that a report says were written; none where it cannot be read."""
    with suppress(OSError, ValueError, KeyError, TypeError, RecursionError):
        return [Path(name) for name in json.loads(report.read_bytes())["written"]]
    return []
