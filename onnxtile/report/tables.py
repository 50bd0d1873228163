"""Results as tables for a terminal; in a pipe the same tables come as plain text."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from importlib import import_module
from math import prod

from onnxtile.model.modules import dotted, module_path
from onnxtile.report.table import (
    Line,
    ResultJson,
    Shown,
    Table,
    at_sizes,
    counted,
    line,
    places,
    reasons,
    rest_of,
    some_of,
    table,
    table_of,
    table_together,
    tables_of,
    together,
)
from onnxtile.system.errors import capped, escaped
from onnxtile.system.text import unquoted
from onnxtile.verification.values import error_place, error_size, largest_error

_HOMES = {
    **{"inspect": "inspect_tables", "trace": "inspect_tables"},
    **{"plan": "plan_tables", "check": "plan_tables"},
    **{"fit": "fit_tables", "curve": "fit_tables", "demo": "fit_tables"},
}
"""The modules of the tables that are not here, by their names: a command needs none but its own."""


def tables_called(name: str, result: ResultJson) -> list[Table | Line]:
    """Return the tables that show `result`; a verb names them."""
    module = import_module(f"onnxtile.report.{_HOMES.get(name, 'tables')}")
    shown: list[Table | Line] = getattr(module, f"for_{name}")(result)
    return shown


# Small results: matches, names, what became of meta-ops.


def for_match(result: ResultJson) -> list[Table | Line]:
    """Return the tables of a `match` result."""
    columns: dict[str, Shown] = {
        "root": "root",
        "module": "module",
        "further nodes": lambda match: " ".join(match["nodes"][1:]),
        "anchors": lambda match: " ".join(f"{name}={node}" for name, node in match["anchors"].items()),
    }
    matches = result["matches"]
    if all(match.get("module", "") in dotted(module_path(match["root"], {})) for match in matches):
        del columns["module"]  # the names of the nodes say it
    return tables_of(f"{len(matches)} matches", columns, matches) or [line("no match")]


def for_list(result: ResultJson) -> list[Table | Line]:
    """Return the table of a `list` result."""
    names = result["names"]
    title = f"{len(names)} {result['kind']}, for {result['option']}"
    return [table_of(title, {"name": "name", "meaning": "summary"}, names)]


def for_unfuse(result: ResultJson) -> list[Table | Line]:
    """Return the tables of an `unfuse` result."""
    return [table("unfused", ("meta-op", "calls"), result["unfused"].items()), *for_verdict(result)]


# What was fused and lowered, and what was not.


def for_fuse(result: ResultJson) -> list[Table | Line]:
    """Return the tables of a `fuse` result."""
    columns: dict[str, Shown] = {
        "pattern": "name",
        "matches": "matches",
        "fused": "fused",
        "refused": lambda pattern: len(pattern["refused"]),
        "overlapped": lambda pattern: pattern.get("overlapped", 0),
        "already one node": lambda pattern: _counts(pattern.get("already", {}), none=""),
        "where": lambda pattern: places(filter(None, pattern.get("modules", ()))) or places(pattern["calls"]),
    }
    reached = [p for p in result["patterns"] if p["matches"] or p["refused"] or p.get("already")]
    for column, key in (("already one node", "already"), ("overlapped", "overlapped")):
        if not any(pattern.get(key) for pattern in reached):
            del columns[column]
    title = f"{result['nodes_before']} nodes became {result['nodes_after']}"
    tables = tables_of(title, columns, reached) or [line(title)]
    none = len(result["patterns"]) - len(reached)
    if none:
        tables.append(line(f"{counted(none, 'pattern')} matched nothing (--explain NAME says why)"))
    refused = [{"pattern": p["name"], "node": r["root"], **r} for p in result["patterns"] for r in p["refused"]]
    tables += tables_of(
        "matches not fused", _REFUSED, together(refused, lambda r: (r["pattern"], unquoted(r["reason"])))
    )
    arena = result.get("arena")
    if arena:
        tables.append(line(f"arena: {arena['before']:,} bytes node by node, {arena['after']:,} bytes with meta-ops"))
    return [*tables, *for_lowered(result), *for_verdict(result)]


_REFUSED: dict[str, Shown] = {"pattern": "pattern", "count": "count", "root": "where", "reason": "reason"}


def for_lowered(result: ResultJson) -> list[Table | Line]:
    """Return the tables of the calls that `fuse` lowered or left; none where no lowering was asked for."""
    written: dict[tuple[str, str], list[str]] = defaultdict(list)
    left: dict[tuple[str, str, str], list[str]] = defaultdict(list)
    for site in result.get("lowered", ()):
        if site.get("operator"):
            operator = ", ".join(filter(None, (site["operator"], site.get("decided"))))
            written[site["meta_op"], operator].append(site["call"])
        else:
            fate = "parts lowered" if site.get("opened") else "kept"
            left[site["meta_op"], fate, site.get("reason", "")].append(site["call"])
    tables: list[Table | Line] = []
    if written:
        rows = [(*key, len(calls)) for key, calls in written.items()]
        tables.append(table("lowered", ("meta-op", "operator", "calls"), rows))
    tables += _on_edge_rows(result)
    if left:
        kept = [(op, fate, len(calls), reason, calls[0]) for (op, fate, reason), calls in left.items()]
        tables.append(table("not lowered as a whole", ("meta-op", "result", "calls", "reason", "first call"), kept))
    not_run = [site for site in result.get("sites", ()) if site.get("skipped")]
    columns: dict[str, Shown] = {"call": "call", "reason": "skipped"}
    return tables and [*tables, *tables_of("calls not compared by a run of their own", columns, not_run)]


_EFFECTS = {
    "kinder": "the operator is kinder: a number where the meta-op has none",
    "no number": "NaN and infinity, where no element is a number",
    "beyond range": "rows whose squares leave the range of the type",
    "worse": "other results",
}


def _on_edge_rows(result: ResultJson) -> list[Table | Line]:
    """Return the table of lowered calls that differ on edge rows; none where no call does."""
    differing = Counter(
        (site["meta_op"], site["operator"], _EFFECTS[effect], ", ".join(numbers))
        for site in result.get("lowered", ())
        for effect, numbers in site.get("edges", {}).items()
    )
    rows = [(*key, calls) for key, calls in differing.items()]
    heads = ("meta-op", "operator", "what differs", "edge rows of", "calls")
    return [table("lowered, and different on edge rows", heads, rows)] if rows else []


# Why a pattern stopped.

_REASONS = 20
_CELL = 240
"""Characters of a cell: of many ways to go on from a node, each has a reason."""
_PARTIAL: dict[str, Shown] = {
    "nodes matched": "nodes",
    "variant": "variant",
    "stopped at": lambda reason: capped(" ".join(reason["part"].split()), _CELL),
    "reason": lambda reason: capped(reason["reason"], _CELL),
    "roots": lambda reason: some_of(reason["roots"], 1),
}
_NOT_FUSED: dict[str, Shown] = {"sites": "sites", "why": "reason", "first": "first"}
_BEGINNINGS: dict[str, Shown] = {
    "variant": "variant",
    "begins with": lambda beginning: " or ".join(beginning["operators"]),
    "in the model": lambda beginning: (
        f"{beginning['taken']}, taken by {', '.join(beginning['takers'])}" if beginning["taken"] else "none"
    ),
    "other operators": lambda beginning: _counts(beginning["others"]),
}
"""What a variant begins with, and how many nodes it could begin with, if earlier patterns had not taken them."""


def for_explain(result: ResultJson) -> list[Table | Line]:
    """Return the tables of an explanation: why sites are no meta-op, the commonest reason first, and why partial matches stopped.

    Of these, the nearest come first. A variant that needs an operator which the model lacks has a line instead.
    """
    missing = {start["variant"]: ", ".join(start["missing"]) for start in result["beginnings"] if start["missing"]}
    possible = [reason for reason in result["reasons"] if reason["variant"] not in missing]
    shown = possible[:_REASONS]
    parts: list[Table | Line] = [line(f"{result['pattern']}: {len(result['matches'])} matches, {_fates(result)}")]
    if result["earlier"]:
        parts.append(line(_ran_before(result["earlier"])))
    if result["repeated"]:
        parts.append(line(f"overlapped inside the fused matches, and so no site of their own: {result['repeated']}"))
    parts += tables_of("sites that were not fused", _NOT_FUSED, result["causes"])
    parts += tables_of("partial matches, the nearest first", _PARTIAL, shown)
    left = len(possible) - len(shown)
    if left:
        parts.append(line(f"{left} more reasons of partial matches that got less far; --json has them all"))
    if not result["reasons"] and not result["matches"] and not result["already"]:
        return [*parts, _without_beginning(result)]
    outside = " outside meta-ops" if result["fused"] or any(pattern["fused"] for pattern in result["earlier"]) else ""
    return [*parts, *(line(_lacking(variants, names, outside)) for names, variants in _by_value(missing).items())]


def _without_beginning(result: ResultJson) -> Table:
    names = " or ".join(dict.fromkeys(name for beginning in result["beginnings"] for name in beginning["operators"]))
    return table_of(f"no {names} to begin with", _BEGINNINGS, result["beginnings"])


def _by_value(names: Mapping[int, str]) -> dict[str, list[int]]:
    by_value: dict[str, list[int]] = {}
    for number, name in names.items():
        by_value.setdefault(name, []).append(number)
    return by_value


def _lacking(variants: Sequence[int], operators: str, outside: str) -> str:
    numbers = ", ".join(map(str, variants))
    subject = f"variant {numbers} needs" if len(variants) == 1 else f"variants {numbers} need"
    return f"{subject} {operators}, which the model does not have{outside}"


def _ran_before(earlier: Sequence[ResultJson]) -> str:
    """Return which patterns ran before the one that is explained, in their order, and how many meta-ops each made."""
    busy = [f"{pattern['name']} ({pattern['fused']} fused)" for pattern in earlier if pattern["fused"]]
    none = len(earlier) - len(busy)
    rest = [f"{counted(none, 'pattern')} that fused nothing"] if none else []
    return f"ran before it: {', '.join([*busy, *rest])}"


def _fates(result: ResultJson) -> str:
    """Return how many matches had which fate."""
    counts = Counter(match["fate"] for match in result["matches"])
    return ", ".join(f"{counts[fate]} {fate}" for fate in ("fused", *sorted(counts.keys() - {"fused"})))


def _counts(nodes: Mapping[str, int], none: str = "none") -> str:
    return ", ".join(f"{name} {count:,}" for name, count in nodes.items()) or none


# The tiled nodes, their tiles, the arena before and after, and the nodes left as they are.

_NAMES = 3
"""Names of nodes that are left as they are for one reason; --json has them all."""


def _grid(node: ResultJson) -> str:
    """Return the stretches along M, K and N; where groups are cut, those of the groups first, so that the product is the tiles."""
    groups = node["matmuls"] // prod(node["grid"])
    return "×".join(map(str, [groups, *node["grid"]] if groups > 1 else node["grid"]))


_TILED: dict[str, Shown] = {
    **{"operator": "op", "M": "m", "K": "k", "N": "n"},
    "grid": _grid,
    "tiles": "matmuls",
}
_EXPERTS: dict[str, Shown] = {
    "operator": "op",
    **{name: name for name in ("experts", "width", "inner", "step", "tiles")},
}
_CHOICE: dict[str, Shown] = {
    "tile": lambda choice: "×".join(map(str, choice["tile"])),
    "loops": "order",
    "nodes": "nodes",
    "bytes held": "held",
    "bytes moved": "bytes_moved",
}
_BOUND: dict[str, Shown] = {
    "lower bound": lambda choice: "" if choice["lower_bound"] is None else f"{choice['lower_bound']:,.0f}",
    "ratio": lambda choice: "" if choice["ratio"] is None else f"{choice['ratio']:.3f}",
}
_LIMITS: dict[str, Shown] = {"limited by": lambda choice: _limited_by(choice["limited_by"])}
_CHOSEN = {**_CHOICE, **_BOUND, **_LIMITS}
_LEVELS: dict[str, Shown] = {
    **{name: name for name in ("where", "count", "level")},
    **{name: shown for name, shown in _CHOICE.items() if name != "nodes"},
    **_BOUND,
    **_LIMITS,
}


def for_tile(result: ResultJson) -> list[Table | Line]:
    """Return the tables of a `tile` result."""
    title = f"{result['nodes_before']} nodes became {result['nodes_after']}"
    tiled = result["tiled"]
    tables: list[Table | Line] = [table_together(title, _TILED, tiled) if tiled else line(title)]
    if result.get("experts"):
        tables.append(table_together("mixtures of experts", _EXPERTS, result["experts"]))
    tables += _choices(tiled)
    if result.get("peaks"):
        peaks = [(way, peak["layers"], peak["model"]) for way, peak in result["peaks"].items()]
        ways = ("accumulate", "inside tiled layers", "main graph")
        if len({peak[1:] for peak in peaks}) > 1:
            tables.append(table("bytes that live at once, by how partial sums are added", ways, peaks))
        else:
            layers, model = peaks[0][1:]
            inside = f"{layers:,} inside tiled layers, " if layers else ""  # none where they are inside functions
            each = f"{inside}{model:,} in the main graph"
            tables.append(line(f"bytes that live at once, however partial sums are added: {each}"))
    tables += _skipped(result["skipped"])
    opset = result.get("opset")
    if opset and opset["before"] != opset["after"]:
        tables.append(line(f"opset: {opset['before']} before, {opset['after']} after, for ScatterND"))
    if result.get("arena"):
        tables.append(line(_arena(result["arena"])))
    tables += [line(f"warning: {text}") for text in result.get("warnings") or ()]
    return [*tables, *for_verdict(result)]


def _skipped(skipped: Iterable[ResultJson]) -> list[Table | Line]:
    """Return the nodes that are left as they are, grouped by reason, the most common first."""
    groups: dict[str, list[str]] = {}
    for node in skipped:
        # Nodes that wait for one size differ in the tensor only.
        reason = f"a size is open: bind it with {node['bind']}" if node["bind"] else node["reason"]
        groups.setdefault(reason, []).append(node["node"])
    ordered = sorted(groups.items(), key=lambda group: -len(group[1]))
    rows = [(len(names), reason, some_of(names, _NAMES)) for reason, names in ordered]
    return [table("left as they are", ("nodes", "reason", "which"), rows)] if rows else []


def _arena(arena: ResultJson) -> str:
    if arena["before"] is None or arena["after"] is None:
        return f"arena: {arena['reason']}"
    change = f" ({arena['after'] / arena['before'] - 1:+.1%})" if arena["before"] else ""
    return f"arena: {arena['before']:,} bytes before, {arena['after']:,} bytes after{change}"


def _choices(tiled: Iterable[ResultJson]) -> list[Table | Line]:
    """Return the tiles chosen within a memory, and the other choices of the layer that moves most; nothing without a choice."""
    chosen = [
        {**node["choice"], "node": node["node"], "module": node.get("module"), "cuts": node.get("cuts")}
        for node in tiled
        if node.get("choice")
    ]
    if not chosen:
        return []
    most = max(chosen, key=lambda choice: choice["bytes_moved"])
    of_one_level = [choice for choice in chosen if "levels" not in choice]
    levels = _levels([choice for choice in chosen if "levels" in choice])
    return [
        *([table_together("tiles chosen", _CHOSEN, of_one_level)] if of_one_level else []),
        *([table_of("tiles chosen, on two levels", _LEVELS, levels)] if levels else []),
        *_axes_legend(chosen),
        *([table_of(f"nodes against bytes: {most['node']}", _CHOICE, most["trade"])] if len(most["trade"]) > 1 else []),
    ]


def _axes_legend(choices: Iterable[ResultJson]) -> list[Line]:
    """Return the line that names the sizes of a tile of a convolution, in their order; none without a convolution."""
    axes = dict.fromkeys("×".join(choice["cuts"]) for choice in choices if choice["cuts"])
    return [line(f"a tile of a convolution is {' or '.join(axes)}")] if axes else []


def _levels(choices: Iterable[ResultJson]) -> list[ResultJson]:
    """Return a row for each level; those of one layer, or of equal layers, follow one another."""
    rows: list[ResultJson] = []
    for choice in together(choices, lambda choice: str(choice["levels"])):
        outer, *inside = choice["levels"]
        rows += [{**outer, "where": choice["where"], "count": choice["count"]}]
        rows += [{**level, "where": "", "count": ""} for level in inside]
    return rows


def _limited_by(limits: Mapping[str, str | None]) -> str:
    """Return the limits that cut axes, each with those axes: "max M K, memory N", "m columns"."""
    axes: dict[str, list[str]] = {}
    for axis, limit in limits.items():
        if limit is not None:
            axes.setdefault(limit, []).append(axis.upper() if len(axis) == 1 else axis)
    return ", ".join(" ".join((limit, *letters)) for limit, letters in axes.items())


# verify: every output with its largest difference, and the first value that differs; and the verdict of other verbs.

_LAYERS = 20
"""Rows of the errors of inner values that are shown; --json has them all."""


def for_verdict(result: ResultJson) -> list[Table | Line]:
    """Return the lines about the runs that verified the result of another verb."""
    verdict = result.get("verdict")
    if verdict is None:
        return [line("not verified")]
    alone = len(result.get("sites") or ())
    each = max((site.get("runs", 1) for site in result.get("sites") or ()), default=1)
    often = f", {each} runs each" if each > 1 else ""
    themselves = "itself" if alone == 1 else "themselves"
    sites = f", and {alone} different site{'s' * (alone > 1)} by {themselves}{often}" if alone else ""
    where = f" at {at_sizes(verdict['dims'])}" if verdict["dims"] else ""
    # An output that is equal for a special reason names it: its relative error alone would look like a mistake.
    explained = [o for o in verdict["outputs"] if o["equal"] and o.get("reason")]
    left, count = verdict.get("not_compared", {}), len(verdict["outputs"])
    compared = f" in {count:,} of {count + len(left):,} outputs" if left else ""
    notes = [f"{o['name']} is off by {o['max_abs'] or 0.0:.2g}: {o['reason']}" for o in explained]
    summary = f"verified{compared}: {verdict['runs']} runs{where}{sites}; {largest_error(verdict['outputs'])}"
    return [*(line(text) for text in (summary, *notes)), *reasons("not compared", left)]


_JUDGED: dict[str, Shown] = {
    "max absolute": lambda value: error_size(value["max_abs"]),
    "max relative": lambda value: error_size(value["max_rel"]),
    "tolerance": lambda value: f"{value['tolerance']:.3g}",
    "equal": lambda value: "yes" if value["equal"] else "NO",
}
_OUTPUTS: dict[str, Shown] = {
    "output": "name",
    **_JUDGED,
    "worst element": lambda output: error_place(output["where"]),
    "inputs": lambda output: output.get("inputs", "") if output["where"] else "",
    "remark": lambda output: output.get("reason", ""),
}
_VALUES: dict[str, Shown] = {
    "value": "name",
    "in the first model": lambda value: "" if value["original"] == value["name"] else value["original"],
    **_JUDGED,
}


def for_verify(result: ResultJson) -> list[Table | Line]:
    """Return the tables of a `verify` result."""
    parts: list[Table | Line] = [table_of("outputs", _OUTPUTS, result["outputs"])]
    parts += [line(f"tolerance: {why}") for why in dict.fromkeys(output["why"] for output in result["outputs"])]
    dims = f" (at {at_sizes(result['dims'])})" if result["dims"] else ""
    runs = f"{result['runs']} run{'s' * (result['runs'] != 1)}"
    parts.append(line(f"{runs}: {', '.join(result['inputs'])}{dims}"))
    parts += reasons("not compared", result.get("not_compared", {}))
    parts += [line(f"not run on {name}: the first model refuses it ({why})") for name, why in result["skipped"].items()]
    return [*parts, *_bisection(result)]


def _bisection(result: ResultJson) -> list[Table | Line]:
    bisection = result.get("bisect")
    if bisection is None:
        return []
    value = bisection["value"]
    nodes = {
        "node": (bisection["node"], bisection["op"]),
        "node in the first model": (bisection["original"], bisection["original_op"]),
    }
    off = f"{error_size(value['max_abs'])}, tolerance {value['tolerance']:.3g} {error_place(value['where'])}".strip()
    rows = [
        ("value", value["name"]),
        *((title, "not known" if name is None else f"{op} {name!r}") for title, (name, op) in nodes.items()),
        ("difference", off),
        ("rewrite", bisection["rewrite"]),
        ("equal values before it", bisection["agreeing"]),
    ]
    return [table("the first value that differs", ("field", "value"), rows), *_layers(bisection["layers"])]


def _layers(layers: Sequence[ResultJson]) -> list[Table | Line]:
    """Return how far each value is off, from the first on that is off at all."""
    start = next((i for i, layer in enumerate(layers) if layer["max_abs"] != 0), len(layers))
    title = f"{len(layers):,} values of both, the first {start:,} without error"
    return [table_of(title, _VALUES, layers[start : start + _LAYERS]), *rest_of(len(layers) - start - _LAYERS)]


# The run of a pipeline: a row for each model, and why a model failed.

_FIGURES = {"nodes": ",", "fused": ",", "tiles": ",", "arena": ",", "error": ".1e"}
_NONE = {"arena": "unplanned", "error": "∞"}
"""By figure, the word for None: an arena without some tensors has no size, an error without a bound is infinite."""
_WORDS = {
    **{"min": "at least ", "max": "at most ", "baseline.fused": "at least ", "baseline.arena": "at most "},
    **{"baseline.tiles": "at most ", "baseline.nodes": "at most "},
}
"""By budget, or the beginning of its name: whether the limit is a least or a most."""


def for_run(result: ResultJson) -> list[Table | Line]:
    """Return the tables of a `run` result."""
    used = _used_figures(result["models"])
    rows = [
        (model["model"], "passed" if model["passed"] else "FAILED", *(_figure(model["figures"], name) for name in used))
        for model in result["models"]
    ]
    parts: list[Table | Line] = [table(f"pipeline {result['pipeline']}", ("model", "", *used), rows)]
    for model in result["models"]:
        parts += reasons(f"not compared in {model['model']}", model["figures"].get("not_compared", {}))
    failures = [{**model, "reason": reason} for model in result["models"] for reason in _failures(model)]
    parts += tables_of("failed", {"model": "model", "reason": "reason"}, failures)
    parts.append(line(f"{result['passed']} passed, {result['failed']} failed"))
    return parts


def _used_figures(models: Iterable[ResultJson]) -> list[str]:
    """Return the names of the figures that any of `models` has, in the order of the columns."""
    known = {name for model in models for name in model["figures"]}
    return [name for name in _FIGURES if name in known]


def _figure(figures: ResultJson, name: str) -> str:
    """Return the text of a figure; empty where there is none."""
    if name not in figures:
        return ""
    return _NONE[name] if figures[name] is None else format(figures[name], _FIGURES[name])


def _failures(model: ResultJson) -> list[str]:
    """Return why a model failed: its error, and each budget that it does not meet."""
    budgets = [budget for budget in model["budgets"] if not budget["met"]]
    lines = [
        f"{budget['budget']}: {_value_text(budget)}, and is to be {_bound(budget)}"
        + (f" ({budget['cause']})" if budget.get("cause") else "")
        for budget in budgets
    ]
    return [model["error"], *lines] if model["error"] else lines


def _value_text(budget: ResultJson) -> str:
    value, figure = budget["value"], budget["budget"].removeprefix("max_").removeprefix("baseline.")
    return _NONE.get(figure, "None") if value is None else _number_text(value)


def _bound(budget: ResultJson) -> str:
    """Return the limit of a budget in words: "at least" or "at most", by the name of the budget."""
    name = budget["budget"]
    word = _WORDS.get(name, _WORDS.get(name.partition("_")[0], ""))
    return f"{word}{_number_text(budget['limit'])}"


def _number_text(value: object) -> str:
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


# The summary of a run as files of other tools: JUnit's XML for test reports, Markdown for pages such as GitHub's step summary.


def to_junit(result: ResultJson) -> bytes:
    """Return the summary as JUnit XML: a test case for each model, with the reasons of its failure."""
    from xml.etree import ElementTree  # few runs are written as JUnit XML

    models = result["models"]
    failed = str(sum(not model["passed"] for model in models))
    suite = ElementTree.Element(
        "testsuite", name=result["pipeline"], tests=str(len(models)), failures=failed, errors="0"
    )
    for model in models:
        case = ElementTree.SubElement(suite, "testcase", classname=result["pipeline"], name=escaped(model["model"]))
        lines = [escaped(line) for line in _failures(model)]
        if not model["passed"]:
            ElementTree.SubElement(case, "failure", message=lines[0] if lines else "failed").text = "\n".join(lines)
        ElementTree.SubElement(case, "system-out").text = "\n".join(_figures(model))
    root = ElementTree.Element("testsuites")
    root.append(suite)
    ElementTree.indent(root)
    content: bytes = ElementTree.tostring(root, encoding="utf-8", xml_declaration=True)
    return content + b"\n"


def _figures(model: ResultJson) -> list[str]:
    return [f"{name}: {_figure(model['figures'], name)}" for name in _used_figures([model])]


def to_markdown(result: ResultJson) -> bytes:
    """Return the summary as Markdown: a table with a row for each model, and the reasons of those that failed."""
    models = result["models"]
    used = _used_figures(models)
    lines = [
        f"## {_cell(result['pipeline'])}: {result['passed']} passed, {result['failed']} failed",
        "",
        f"| model | result | {' | '.join(used)} |" if used else "| model | result |",
        f"|---|---|{'---:|' * len(used)}",
    ]
    for model in models:
        cells = [_cell(model["model"]), "passed" if model["passed"] else "**failed**"]
        lines.append(f"| {' | '.join([*cells, *(_figure(model['figures'], name) for name in used)])} |")
    failures = [(model["model"], reason) for model in models for reason in _failures(model)]
    if failures:
        lines += ["", *(f"- {_cell(model)}: {_cell(reason)}" for model, reason in failures)]
    return ("\n".join(lines) + "\n").encode()


def _cell(text: str) -> str:
    """Return a text that Markdown shows as it is."""
    shown = escaped(text)
    return "".join(f"\\{letter}" if letter in "\\`*_{}[]<>#|~&" else letter for letter in shown)
