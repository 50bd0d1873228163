"""A plan into files: which format each is, and whether what is asked of it makes sense."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from onnxtile.errors import UsageError
from onnxtile.report.format import Format, Options, Plan, format_of


@dataclass(frozen=True)
class Emission:
    """The files that a plan is to be written to, each with its format, and how pictures are drawn."""

    files: Mapping[Path, Format]
    names: bool | None
    before: Plan | None

    @classmethod
    def of(cls, paths: Iterable[Path], names: bool | None = None, compare: Path | None = None) -> Emission:
        """Return what `paths` ask for; `compare` is the JSON of another plan. Raises UsageError before there is anything to write."""
        files = {path: format_of(path) for path in paths}
        asked = "--compare" if compare is not None else "--names" if names is not None else None
        if asked is not None and not any(form.picture for form in files.values()):
            raise UsageError(
                f"{asked} is about pictures, and none is asked for", hint="add --emit plan.html, .svg or .png"
            )
        return cls(files, names, None if compare is None else read_plan(compare))

    def content(self, plan: Plan) -> dict[Path, bytes]:
        """Return what goes into each file."""
        return {
            path: form.render(plan, Options(form.title(path), self.names, self.before))
            for path, form in self.files.items()
        }


def read_plan(path: Path) -> Plan:
    """Return the plan in the JSON file `path`. Raises UsageError where it is none."""
    hint = "write one by: onnxtile plan MODEL --emit before.json"
    try:
        found: Any = json.loads(path.read_bytes())
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror or error}", hint=hint) from error
    except ValueError as error:
        raise UsageError(f"{path} is no JSON: {error}", hint=hint) from error
    if not _is_plan(found):
        raise UsageError(f"{path} is no plan: it has no arenas, or no buffers with offset, size and life", hint=hint)
    plan: Plan = found
    return plan


_NUMBERS = ("offset", "size", "first", "last")


def _is_plan(found: Any) -> bool:
    if not isinstance(found, dict) or not isinstance(found.get("arenas"), list):
        return False
    rows = found.get("buffers")
    return isinstance(rows, list) and all(isinstance(row, dict) and _is_buffer(row) for row in rows)


def _is_buffer(row: Mapping[str, Any]) -> bool:
    numbers = all(isinstance(row.get(key), int) and row[key] >= 0 for key in _NUMBERS)
    return numbers and all(isinstance(row.get(key), str) for key in ("name", "arena", "kind"))
