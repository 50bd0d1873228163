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
    tables += _on_edge_rows(result)
    if left:
        kept = [(op, fate, len(calls), reason, calls[0]) for (op, fate, reason), calls in left.items()]
        tables.append(table("not lowered as a whole", ("meta-op", "result", "calls", "reason", "first call"), kept))
    not_run = [(site["call"], site["skipped"]) for site in result.get("sites", ()) if site.get("skipped")]
    if tables and not_run:
        tables.append(table("calls not compared by a run of their own", ("call", "reason"), not_run))
    return tables


_EFFECTS = {
    "kinder": "the operator is kinder: a number where the meta-op has none",
    "no number": "NaN and infinity, where no element is a number",
    "beyond range": "rows whose squares leave the range of the type",
    "worse": "other results",
}


def _on_edge_rows(result: ResultJson) -> list[Table | Text]:
    """Return the table of lowered calls that differ on edge rows; none where no call does."""
    differing: dict[tuple[str, str, str, str], int] = defaultdict(int)
    for site in result.get("lowered", ()):
        for effect, numbers in site.get("edges", {}).items():
            differing[site["meta_op"], site["operator"], _EFFECTS[effect], ", ".join(numbers)] += 1
    rows = [(*key, calls) for key, calls in differing.items()]
    heads = ("meta-op", "operator", "what differs", "edge rows of", "calls")
    return [table("lowered, and different on edge rows", heads, rows)] if rows else []
