"""The result of fit as tables, and that of the demo."""

from __future__ import annotations

from functools import partial

from onnxtile.report.layout import live_line
from onnxtile.report.plan_tables import for_arena_run, for_firmware, open_sizes, reads_text
from onnxtile.report.table import Line, ResultJson, Shown, Table, line, some_of, table, table_of, tables_of
from onnxtile.report.tables import for_verdict
from onnxtile.report.words import readable

# fit: the costs before and after, the steps, what is in the way where nothing fits, and the trade.

_SHOWN = 8
"""Tensors that are listed where nothing fits; --json has them all."""
_STEPS: dict[str, Shown] = {
    "what was cut or rewritten": "text",
    "peak": lambda step: step["peak"] or "",  # a rewrite, which has no cost of its own
    "extra MACs": lambda step: step["extra_macs"] if step["peak"] else "",
    "nodes": lambda step: step["pieces"] or "",
}


def for_fit(result: ResultJson) -> list[Table | Line]:
    """Return the tables of a `fit` result."""
    curve = for_curve(result) if result["curve"] else []
    arena = for_arena_run((result["verdict"] or {}).get("arena"))
    return [*curve, *_fitted(result), *for_verdict(result), *arena, *for_firmware(result.get("firmware"))]


def _fitted(result: ResultJson) -> list[Table | Line]:
    """Return the tables of a `fit` result, without the verdict of its runs."""
    before, after = result["before"], result["after"]
    costs: dict[str, Shown] = {
        **{"model": "model", "arena": "arena", "peak": "peak", "MACs": "macs"},
        "extra": partial(_extra, before),
        **{"nodes": "nodes", "bytes copied": "copied"},
        "ms": lambda cost: f"{1000 * cost['seconds']:.4g}",
    }
    rows = [{**before, "model": "before"}, {**after, "model": "after"}]
    tables: list[Table | Line] = [
        table_of(f"costs; the time is an estimate by the speeds of {result['speeds']}", costs, rows)
    ]
    if result["fits"] and result.get("capacity"):
        name, capacity = result["capacity"]["name"], result["capacity"]["bytes"]
        tables.append(line(f"fits: {after['arena']:,} of the {capacity:,} bytes of {name}"))
    tables += tables_of("arena, by the place of inputs", _INPUT_PLACES, result.get("inputs") or ())
    tables += [line(_stream_text(stream)) for stream in result.get("streamed") or ()]
    tables += [line(f"sizes: {text}") for _, text in open_sizes(result)]
    movement = result.get("movement")
    if movement:
        ends = f"{movement['fast']} and {movement['slow']}"
        bound = f"lower bound {movement['lower_bound']:,}"
        tables.append(line(f"between {ends}: {movement['copies']:,} copies of {movement['bytes']:,} bytes ({bound})"))
    tables += tables_of("steps", _STEPS, result["steps"]) or ([line("nothing was cut")] if result["fits"] else [])
    if result["tiled"]:
        tables.append(line(_tiled(result["tiled"])))
    blocked = result["blocked_by"]
    if blocked:
        cut = f", which is cut with {_run(blocked['nodes'])}" if len(blocked["nodes"]) > 1 else ""
        peak = f"the peak of {blocked['peak']:,} bytes is at {blocked['kernel']}{cut}"
        floor = line(f"no way to cut the model takes less than {blocked['floor']:,} bytes")
        tables += [] if blocked["search"] == "floor" else [line(peak)]
        tables += [floor] if blocked["floor"] else []
        if 2 * blocked["outputs"] > blocked["peak"]:
            tables.append(line(f"the outputs of the model, which live to the end, take {blocked['outputs']:,} bytes"))
        tables.append(table_of("alive there", {"tensor": str}, blocked["tensors"][:_SHOWN]))
        tables += tables_of("what is in the way", {"node": str}, blocked["reasons"][:_SHOWN])
    return tables


def _stream_text(stream: ResultJson) -> str:
    """Return how the rows of an input come, and how many bytes of them the arena has at most."""
    return f"{stream['input']} comes row by row: {reads_text(stream)}; at most {stream['most_bytes']:,} bytes of them in the arena"


_INPUT_PLACES: dict[str, Shown] = {
    "inputs": lambda place: "inside" if place["inside"] else "outside",
    "before": "before",
    "after": lambda place: f"at most {place['after']:,}" if place["at_most"] else place["after"],
}


def _tiled(result: ResultJson) -> str:
    """Return how many products were tiled, and which nodes exceed the limits."""
    tiles = sum(product["matmuls"] for product in result["tiled"])
    over = [node["node"] for node in result["skipped"] if node["over_limits"]]
    beyond = f"; over the limits: {some_of(over, _SHOWN)}" if over else ""
    return f"{len(result['tiled']):,} products became {tiles:,} tiles{beyond}"


def _run(nodes: list[str]) -> str:
    return nodes[0] if len(nodes) == 1 else f"{nodes[0]} to {nodes[-1]}"


def _extra(before: ResultJson, cost: ResultJson) -> str:
    """Return how many more multiply-accumulates there are than before."""
    return f"{cost['macs'] / before['macs'] - 1:+.1%}" if before["macs"] else ""


COLUMNS = ("arena", "of before", "MACs", "extra", "nodes", "bytes copied", "how found")


def curve_rows(result: ResultJson) -> list[tuple[str | int, ...]]:
    """Return a row for each point of the trade."""
    before = result["curve"][0]
    return [_row(point, before) for point in result["curve"]]


def for_curve(result: ResultJson) -> list[Table | Line]:
    """Return the table of the trade: the model as it is, then ever smaller arenas."""
    return [table("arena against its price", COLUMNS, curve_rows(result))]


def _row(point: ResultJson, before: ResultJson) -> tuple[str | int, ...]:
    share = f"{point['arena'] / before['arena']:.1%}" if before["arena"] else ""
    state = "estimated" if point["estimated"] else "planned"
    return point["arena"], share, point["macs"], _extra(before, point), point["nodes"], point["copied"], state


# The demo: a row for each of its models.

_DEMO: dict[str, Shown] = {
    "model": "model",
    "nodes": "nodes",
    "meta-ops": lambda stage: stage["meta_ops"] or "",
    "tiles": lambda stage: stage["tiles"] or "",
    "activations": lambda stage: readable(stage["activations"]),
    "arena": lambda stage: readable(stage["arena"]),
    "with insides": lambda stage: readable(stage["arena_with_insides"]),
    "max error": lambda stage: f"{stage['error']:.2g}",
}


def for_demo(result: ResultJson) -> list[Table | Line]:
    """Return the tables of the demo: a row for each model, its live bytes as a line, and the commands that do the same."""
    stages, folder = result["stages"], result["folder"]
    top = max(stage["arena"] for stage in stages)
    live: dict[str, Shown] = {
        "model": "model",
        "live bytes": lambda stage: live_line(stage["live"], top),
        "arena": lambda stage: readable(stage["arena"]),
    }
    last = stages[-1]["file"].removesuffix(".onnx")
    commands = [
        *(stage["command"] for stage in stages if stage["command"]),
        f"plan {last}.onnx --emit plan.html",
        f"verify {stages[0]['file']} {last}.planned.onnx",
    ]
    return [
        table_of("a small vision transformer: fused, then tiled, each planned and verified", _DEMO, stages),
        line("tiles: those in the bodies of meta-ops; each body counts once, however many nodes call it"),
        line("activations: bytes without sharing; arena: bytes with sharing, where a kernel does each whole meta-op"),
        line(
            "with insides: the arena where the nodes inside meta-ops run one by one; for such hardware, plan without fuse"
        ),
        line("max error: largest relative difference of an output from the original's"),
        line(""),
        table_of("live bytes from the first step to the last, at one scale", live, stages),
        line(f"Files are in {folder}/. To look into the arena, open in a browser:"),
        line(f"  {folder}/{last}.plan.html"),
        line("The same, step by step, in that folder:"),
        *(line(f"  onnxtile {command}") for command in commands),
    ]
