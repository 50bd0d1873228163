"""What `fuse --lower` did, as tables: what became which operators, and what stayed a call, with the reason."""

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
            fate = "its parts are lowered" if site.get("opened") else "stays a call"
            left[site["meta_op"], fate, site.get("reason", "")].append(site["call"])
    tables: list[Table | Text] = []
    if written:
        rows = [(*key, len(calls)) for key, calls in written.items()]
        tables.append(table("lowered", ("meta-op", "operator", "sites"), rows))
    if left:
        kept = [(*key, len(calls), calls[0]) for key, calls in left.items()]
        tables.append(table("not lowered as a whole", ("meta-op", "fate", "reason", "sites", "first"), kept))
    alone = [(site["call"], site["skipped"]) for site in result.get("sites", ()) if site.get("skipped")]
    if tables and alone:
        tables.append(table("not run alone", ("call", "reason"), alone))
    return tables
