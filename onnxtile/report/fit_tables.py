"""The tables of `fit`: the costs before and after, the steps, and what is in the way where nothing fits."""

from __future__ import annotations

from functools import partial

from rich.table import Table
from rich.text import Text

from onnxtile.report.table import ResultJson, Shown, line, some_of, table, table_of

_SHOWN = 8
"""Tensors that are listed where nothing fits; --json has them all."""
_STEPS: dict[str, Shown] = {"what was cut": "text", "peak": "peak", "extra MACs": "extra_macs", "nodes": "pieces"}


def for_fitted(result: ResultJson) -> list[Table | Text]:
    """Return the tables of a `fit` result, without the verdict of its runs."""
    before, after = result["before"], result["after"]
    costs: dict[str, Shown] = {
        **{"model": "model", "arena": "arena", "peak": "peak", "MACs": "macs"},
        "extra": partial(_extra, before),
        **{"nodes": "nodes", "bytes copied": "copied"},
    }
    rows = [{**before, "model": "before"}, {**after, "model": "after"}]
    tables: list[Table | Text] = [table_of("costs", costs, rows)]
    movement = result.get("movement")
    if movement:
        ends = f"{movement['fast']} and {movement['slow']}"
        bound = f"lower bound {movement['lower_bound']:,}"
        tables.append(line(f"between {ends}: {movement['copies']:,} copies of {movement['bytes']:,} bytes ({bound})"))
    if result["steps"]:
        tables.append(table_of("steps", _STEPS, result["steps"]))
    elif result["fits"]:
        tables.append(line("nothing was cut"))
    if result["tiled"]:
        tables.append(line(_tiled(result["tiled"])))
    blocked = result["blocked_by"]
    if blocked:
        cut = f", which is cut with {_run(blocked['nodes'])}" if len(blocked["nodes"]) > 1 else ""
        tables.append(line(f"the peak of {blocked['peak']:,} bytes is at {blocked['kernel']}{cut}"))
        if 2 * blocked["outputs"] > blocked["peak"]:
            tables.append(line(f"the outputs of the model, which live to the end, take {blocked['outputs']:,} bytes"))
        tables.append(table("alive there", ("tensor",), [(one,) for one in blocked["tensors"][:_SHOWN]]))
        if blocked["reasons"]:
            tables.append(table("what is in the way", ("node",), [(one,) for one in blocked["reasons"][:_SHOWN]]))
    return tables


def _tiled(result: ResultJson) -> str:
    """Return how many products were tiled, and which nodes exceed the limits."""
    tiles = sum(one["matmuls"] for one in result["tiled"])
    over = [one["node"] for one in result["skipped"] if one["over_limits"]]
    beyond = f"; over the limits: {some_of(over, _SHOWN)}" if over else ""
    return f"{len(result['tiled']):,} products became {tiles:,} tiles{beyond}"


def _run(nodes: list[str]) -> str:
    return nodes[0] if len(nodes) == 1 else f"{nodes[0]} to {nodes[-1]}"


def _extra(before: ResultJson, one: ResultJson) -> str:
    """Return how many more multiply-accumulates there are than before."""
    return f"{one['macs'] / before['macs'] - 1:+.1%}" if before["macs"] else ""


# The table of the trade that fit finds.

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
    state = "estimated" if point["estimated"] else "planned"
    return point["arena"], share, point["macs"], _extra(before, point), point["nodes"], point["copied"], state
