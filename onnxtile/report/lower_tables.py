"""The tables of `fuse --lower`: meta-ops that were lowered, and meta-ops that were not, with the reason."""

from __future__ import annotations

from collections import defaultdict

from rich.table import Table
from rich.text import Text

from onnxtile.report.table import ResultJson, table


def for_lowered(result: ResultJson) -> list[Table | Text]:
    """Return the tables of the calls that `fuse` lowered or left; none where no lowering was asked for."""
    written: dict[tuple[str, str], list[str]] = defaultdict(list)
    left: dict[tuple[str, str, str], list[str]] = defaultdict(list)
    for site in result.get("lowered", ()):
        if site.get("operator"):
            written[site["meta_op"], site["operator"]].append(site["call"])
        else:
            fate = "parts lowered" if site.get("opened") else "kept"
            left[site["meta_op"], fate, site.get("reason", "")].append(site["call"])
    tables: list[Table | Text] = []
    if written:
        rows = [(*key, len(calls)) for key, calls in written.items()]
        tables.append(table("lowered", ("meta-op", "operator", "calls"), rows))
    if left:
        kept = [(op, fate, len(calls), reason, calls[0]) for (op, fate, reason), calls in left.items()]
        tables.append(table("not lowered as a whole", ("meta-op", "result", "calls", "reason", "first call"), kept))
    not_run = [(site["call"], site["skipped"]) for site in result.get("sites", ()) if site.get("skipped")]
    if tables and not_run:
        tables.append(table("calls not compared by a run of their own", ("call", "reason"), not_run))
    return tables
