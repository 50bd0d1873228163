"""The table of the trade that fit finds."""

from __future__ import annotations

from rich.table import Table
from rich.text import Text

from onnxtile.report.table import ResultJson, table

COLUMNS = ("arena", "of before", "MACs", "extra", "nodes", "bytes copied", "arena is")


def curve_rows(result: ResultJson) -> list[tuple[str | int, ...]]:
    """Return a row for each point of the trade."""
    before = result["curve"][0]
    return [_row(point, before) for point in result["curve"]]


def for_curve(result: ResultJson) -> list[Table | Text]:
    """Return the table of the trade: the model as it is, then ever smaller arenas."""
    return [table("arena against its price", COLUMNS, curve_rows(result))]


def _row(point: ResultJson, before: ResultJson) -> tuple[str | int, ...]:
    share = f"{point['arena'] / before['arena']:.1%}" if before["arena"] else ""
    extra = f"{point['macs'] / before['macs'] - 1:+.1%}" if before["macs"] else ""
    state = "estimated" if point["estimated"] else "planned"
    return point["arena"], share, point["macs"], extra, point["nodes"], point["copied"], state
