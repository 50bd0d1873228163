"""The tables of `inspect`: the model, its operators, its nodes, and traced activations."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import groupby
from typing import Any

from onnxtile.model.modules import dotted, module_path
from onnxtile.report.table import (
    Line,
    ResultJson,
    Shown,
    Table,
    counted,
    line,
    places,
    rest_of,
    some_of,
    table,
    table_of,
)
from onnxtile.report.words import in_words
from onnxtile.system.dataclass import dataclass
from onnxtile.system.text import as_csv, without_numbers

_ROWS = 20
"""Rows of unknown sizes and of kept activations that are shown; --json has them all."""

_PRODUCTS = 5
"""Counts by operator in a row of the table of the model."""
_LONGEST_FORMULA = 50
"""Characters of a formula in the table of operators."""


def for_inspect(result: ResultJson) -> list[Table | Line]:
    """Return the tables of an `inspect` result."""
    figures = [*_model(result), *([] if _is_open(result) else _sums(result)), *_workspaces(result["workspaces"])]
    parts: list[Table | Line] = [
        table("model", ("figure", "value"), figures),
        *_formulas(result),
        table("operators", ("operator", "count", "MACs", "FLOPs", "attributes"), _operators(result)),
        *_tree(result),
        *_nodes(result),
    ]
    for name, body in result["macs"]["bodies"].items():
        work = _products(body["by_operator"]) or "none"
        flops = _total(result["flops"]["bodies"][name])
        parts.append(line(f"body {name}, each time it runs: {body['total']:,} MACs ({work}), FLOPs {flops}"))
    unknown, open_ = _unknown(result), result["open"]
    if unknown and _is_open(result):
        parts.append(line(f"the work of a node needs bound sizes: give {' '.join(open_)}"))
        unknown = []
    for title, remarks in (("not known", unknown), ("contradictions", result["conflicts"])):
        if remarks:
            shown = table_of(f"{title}: {len(remarks)}", {"name": "name", "reason": "reason"}, remarks[:_ROWS])
            parts += [shown, *rest_of(len(remarks) - _ROWS)]
    return [*parts, *_training(result)]


def _is_open(result: ResultJson) -> bool:
    """Return whether figures are formulas, since sizes of inputs are open."""
    return "formulas" in result and not result["sizes"]


def _formulas(result: ResultJson) -> list[Table | Line]:
    """Return the table of the work at all sizes of open dimensions."""
    formulas = result.get("formulas")
    if formulas is None:
        return []
    titles = {
        "macs": "MACs",
        "flops": "FLOPs",
        "traffic": "bytes of activations moved by all nodes",
        "weights": "bytes of weights read by all nodes",
        "activations": "bytes of activations",
    }
    rows = [
        (title, f"{in_words(formulas[key]['total'])}{_left_out(formulas[key]['unknown'])}")
        for key, title in titles.items()
    ]
    return [table(f"at all sizes of {', '.join(formulas['ranges'])}", ("figure", "value"), rows)]


def _left_out(nodes: list[str]) -> str:
    return f", without {counted(len(nodes), 'node')}" if nodes else ""


_TRACED: dict[str, Shown] = {
    **{"node": "node", "operator": "op", "output": "name", "type": "dtype"},
    "shape": lambda activation: _shape(activation["shape"]),
    "min": lambda activation: _number(activation["min"]),
    "max": lambda activation: _number(activation["max"]),
    "mean": lambda activation: _number(activation["mean"]),
    **{"NaNs": "nans", "infinities": "infinities"},
}


def for_trace(result: ResultJson) -> list[Table | Line]:
    """Return the table of traced activations."""
    activations = result["activations"]
    inputs = f", {result['inputs']}" if result.get("inputs") else ""
    return [table_of(f"{counted(len(activations), 'activation')}{inputs}", _TRACED, activations)]


_WORK: dict[str, Shown] = {
    **{"MACs": "macs", "FLOPs": "flops"},
    **{"bytes read": "bytes_read", "weight bytes read": "weight_bytes_read", "bytes written": "bytes_written"},
    "MACs/byte": lambda node: None if node["intensity"] is None else f"{node['intensity']:.3g}",
}
"""The columns of nodes that depend on their sizes."""
_NODES: dict[str, Shown] = {
    "node": lambda node: f"{node['body']}/{node['node']}" if node["body"] else node["node"],
    "module": "module",
    "operator": "op",
    "output": lambda node: _shape(node["outputs"][0]["shape"] if node["outputs"] else None),
    "type": lambda node: node["outputs"][0]["dtype"] if node["outputs"] else None,
    **_WORK,
}


_TITLES = {
    "bytes": "bytes read and written",
    "macs": "MACs",
    "flops": "FLOPs",
    "weights": "bytes of constants read",
}


def _nodes(result: ResultJson) -> list[Table | Line]:
    """Return the table of all nodes, with their modules where the names do not have them; or that of the nodes that cost most."""
    if "top" in result and _is_open(result):
        return []
    if "top" in result:
        return _top(result["top"])
    nodes, columns = result["nodes"], dict(_NODES)
    if all(_is_named(node) for node in nodes):
        del columns["module"]
    if _is_open(result):
        columns = {title: shown for title, shown in columns.items() if title not in _WORK}
    return [table_of("nodes", columns, nodes)]


def _top(top: ResultJson) -> list[Table | Line]:
    title, rows = _TITLES[top["by"]], top["rows"]
    columns: dict[str, Shown] = {
        "where": lambda row: places(filter(None, row["modules"])) or places(row["nodes"]),
        **{"operator": "op", "count": "count"},
        "output": _NODES["output"],
        "type": _NODES["type"],
        **{f"{title} of each": "each", "of all": "amount"},
        "share": lambda row: f"{row['amount'] / top['total']:.1%}" if top["total"] else "",
    }
    shown = f"{len(rows):,} of {top['kinds']:,}" if len(rows) < top["kinds"] else f"{top['kinds']:,}"
    parts: list[Table | Line] = [table_of(f"{shown} kinds of nodes by {title}, {top['total']:,} in all", columns, rows)]
    if top["unknown_nodes"]:
        parts.append(line(f"without {counted(top['unknown_nodes'], 'node')} whose {title} are not known"))
    return parts


def _is_named(node: ResultJson) -> bool:
    """Return whether the name of a node says its module."""
    return bool(dotted(module_path(node["node"], {})) == node["module"])


def _model(result: ResultJson) -> list[tuple[str, object]]:
    parameters = result["parameters"]
    opsets = ", ".join(f"{domain or 'ai.onnx'} {version}" for domain, version in result["opsets"].items())
    return [
        ("IR version", result["ir_version"]),
        ("producer", result["producer"]),
        ("opsets", opsets),
        *(("input", _tensor(tensor)) for tensor in result["inputs"]),
        *(("output", _tensor(tensor)) for tensor in result["outputs"]),
        *(("open", option) for option in result["open"]),
        *(("figures at", f"{name}={size}") for name, size in result["sizes"].items()),
        ("parameters", f"{parameters['elements']:,} in {parameters['tensors']:,} tensors"),
        ("trainable parameters", f"{parameters['trainable']:,}"),
        ("parameter bytes", f"{parameters['bytes']:,}"),
        ("bytes of other constants", f"{parameters['other_constant_bytes']:,}"),
    ]


def _sums(result: ResultJson) -> list[tuple[str, object]]:
    """Return the rows of the work and the bytes of all nodes."""
    macs, traffic = result["macs"], result["traffic"]
    return [
        ("MACs", _total(macs)),
        ("MACs by operator", _products(macs["by_operator"])),
        *_by_operand_types(macs),
        ("FLOPs", _total(result["flops"])),
        ("FLOPs by operator", _products(result["flops"]["by_operator"])),
        ("bias additions", _products(macs["bias_additions"])),
        ("busiest node (input + output)", _largest(traffic["peak"], traffic["unknown_nodes"])),
        ("weights read by all nodes", _known_bytes(traffic, "weights")),
        ("activations moved by all nodes", _known_bytes(traffic, "sum")),
        ("activations", _known_bytes(traffic, "activations")),
        ("activations with inputs", _known_bytes(traffic, "activations_with_inputs")),
    ]


def _total(work: ResultJson) -> str:
    """Return the sum, and how many nodes without a known size it leaves out."""
    known = f"{work['total']:,}" if work["total"] or not work["unknown"] else "?"
    without = f", without {counted(len(work['unknown']), 'node')} whose work is not known" if work["unknown"] else ""
    return f"{known}{without}"


# The tree of modules. Equal modules next to each other, such as the layers of a transformer, are one row with their count.


@dataclass(frozen=True)
class _Subtree:
    """A module with those inside it, in order. It stands for itself and its equal neighbours, whose `names` it has.

    Modules have equal `figures` where their sums are equal, and the names and figures of what is inside.
    """

    module: ResultJson
    names: tuple[str, ...]
    inside: tuple[_Subtree, ...]
    figures: int


def _tree(result: ResultJson) -> list[Table | Line]:
    if "tree" not in result:
        return []
    modules = result["tree"]
    if len(modules) == 1:
        return [line("modules: neither the metadata nor the names of the nodes say any")]
    columns: dict[str, Shown] = {
        "module": lambda row: row["shown"],
        "class": lambda row: row["class"].rpartition(".")[2],
        **{"count": "count", "nodes": "nodes", "parameters": "parameters"},
        "MACs": partial(_summed, "macs", "unknown_nodes"),
        "FLOPs": partial(_summed, "flops", "uncounted_nodes"),
        "bytes read": partial(_summed, "bytes_read", "unknown_nodes"),
        "bytes written": partial(_summed, "bytes_written", "unknown_nodes"),
    }
    rows = list(_tree_rows(_subtree(modules)))
    if not any(module["class"] for module in modules):
        del columns["class"]
    if all(row["count"] == 1 for row in rows):
        del columns["count"]
        return [table_of("modules", columns, rows)]
    return [table_of("modules; a row with a count has the figures of each", columns, rows)]


def _subtree(modules: Sequence[ResultJson]) -> _Subtree:
    """Return the tree of `modules`, of which each stands before those inside it."""
    figures: dict[object, int] = {}
    # From the last module on, so that what is inside a module is built before it; the next sibling is on top.
    built: list[_Subtree] = []
    for module in reversed(modules):
        inside = []
        while built and built[-1].module["depth"] > module["depth"]:
            inside.append(built.pop())
        merged = tuple(_merged(inside))
        sums = tuple(value for key, value in module.items() if key not in {"module", "path", "depth"})
        key = sums, tuple((child.names, child.figures) for child in merged)
        names = tuple(module["path"][-1:]) or ("model",)
        built.append(_Subtree(module, names, merged, figures.setdefault(key, len(figures))))
    return built[0]


def _merged(siblings: Iterable[_Subtree]) -> Iterator[_Subtree]:
    """Yield `siblings`, equal neighbours whose names differ in numbers only as one."""
    for _, group in groupby(siblings, key=lambda sibling: (sibling.figures, without_numbers(sibling.names[0]))):
        same = list(group)
        yield replace(same[0], names=tuple(name for sibling in same for name in sibling.names))


def _tree_rows(tree: _Subtree) -> Iterator[ResultJson]:
    """Yield a row for each module of `tree`, indented by its depth, with its count."""
    todo = [tree]
    while todo:
        subtree = todo.pop()
        yield {
            **subtree.module,
            "shown": "  " * subtree.module["depth"] + places(subtree.names),
            "count": len(subtree.names),
        }
        todo += reversed(subtree.inside)


def _summed(key: str, missing: str, module: ResultJson) -> object:
    """Return a sum over a module, with "+ ?" where it leaves out nodes."""
    return f"{module[key]:,} + ?" if module[missing] else module[key]


def _workspaces(workspaces: ResultJson) -> list[tuple[str, object]]:
    """Return the rows of workspaces, none where no pattern declares any."""
    if not workspaces["nodes"]:
        return []
    return [
        ("largest workspace", _largest(workspaces["largest"], workspaces["unknown_nodes"])),
        ("workspaces of all nodes", _known_bytes(workspaces, "sum")),
    ]


def _largest(node: ResultJson, unknown: int) -> str:
    if not node["node"]:
        return "?"
    without = f", without {counted(unknown, 'node')} of unknown size" if unknown else ""
    return f"{node['bytes']:,} B at {node['node']}{without}"


def _known_bytes(traffic: ResultJson, key: str) -> str:
    """Return a sum in bytes, with "+ ?" where it leaves out unknown sizes."""
    return f"{traffic[key]:,} B + ?" if traffic["unknown_nodes"] else f"{traffic[key]:,} B"


def _operators(result: ResultJson) -> Iterable[tuple[object, ...]]:
    macs, flops = (_by_operator(result, key) for key in ("macs", "flops"))
    for use in result["operators"]:
        op, attributes = use["op"], "; ".join(filter(None, map(_attribute, use["attributes"])))
        yield op, use["count"], macs[op], flops[op], attributes


def _by_operand_types(macs: ResultJson) -> list[tuple[str, str]]:
    """Return the row of MACs by the stored types of what is multiplied, where not all are floats."""
    counts = macs["by_operand_types"]
    return [("MACs by operand types", _products(counts))] if set(counts) - {"float x float"} else []


def _by_operator(result: ResultJson, key: str) -> dict[str, int | str]:
    """Return the work of all nodes of each operator: a number, or a formula of open sizes."""
    if _is_open(result):
        return _formulas_by_operator(result, key)
    work: Counter[str] = Counter({use["op"]: 0 for use in result["operators"]})
    for node in result["nodes"]:
        # What a body does is in the node that has it.
        work[node["op"]] += 0 if node["body"] else node[key] or 0
    unknown = {node["op"] for node in result["nodes"] if node[key] is None}
    return {op: count if op not in unknown else f"{count:,} + ?" if count else "?" for op, count in work.items()}


def _formulas_by_operator(result: ResultJson, key: str) -> dict[str, int | str]:
    formulas = result["formulas"][key]
    known = {op: _short_formula(in_words(formula)) for op, formula in formulas["by_operator"].items()}
    unknown = {node["op"] for node in result["nodes"] if node["node"] in formulas["unknown"]}
    known |= {op: f"{known[op]} + ?" if op in known else "?" for op in unknown}
    return {use["op"]: known.get(use["op"], 0) for use in result["operators"]}


def _short_formula(text: str) -> str:
    return text if len(text) <= _LONGEST_FORMULA else "formula in --json"


def _attribute(attribute: ResultJson) -> str:
    """Return "kernel_shape 1×1, 3×3", "group 1", or "epsilon 1e-12 … 1e-05"."""
    values = attribute["values"]
    if values is not None and len(values) <= 4:
        return f"{attribute['name']} {', '.join(map(_value, values))}"
    if attribute["min"] is None:
        return f"{attribute['name']} {len(values)} values" if values is not None else ""
    return f"{attribute['name']} {_number(attribute['min'])} … {_number(attribute['max'])}"


def _value(value: Any) -> str:
    if isinstance(value, list):
        return "×".join(map(_value, value)) or "[]"
    return f"{value:.6g}" if isinstance(value, float) else str(value) or "''"


def _unknown(result: ResultJson) -> list[ResultJson]:
    products = result["macs"]["unknown"]
    return [*result["unknown"], *products, *(remark for remark in result["flops"]["unknown"] if remark not in products)]


def _training(result: ResultJson) -> list[Table | Line]:
    kept = result.get("training")
    if kept is None:
        return []
    unknown = kept["of_unknown_size"]
    title = f"kept for a backward pass: {kept['bytes']:,} bytes in {len(kept['values']) - unknown} activations"
    title += f", and {unknown:,} of unknown size" if unknown else ""
    parts: list[Table | Line] = [line(title), table("", ("operator", "bytes"), _kept_bytes(kept))]
    if kept["unknown"]:
        parts.append(line(f"no rule says what these keep: {', '.join(kept['unknown'][:_ROWS])}"))
    return parts


def _kept_bytes(kept: ResultJson) -> Iterable[tuple[str, int | None]]:
    """Yield the bytes by operator; None where all its activations are of unknown size."""
    known = kept["by_operator"]
    return ((op, count or None) for op, count in known.items()) if kept["of_unknown_size"] else known.items()


def _products(work: ResultJson) -> str:
    """Return the first of the counts, the largest; the table of operators has all."""
    return some_of([f"{op} {count:,}" for op, count in work.items()], _PRODUCTS) or "0"


def _tensor(tensor: ResultJson) -> str:
    return f"{tensor['name']}: {tensor['dtype'] or '?'} {_shape(tensor['shape'])}"


def _shape(shape: list[Any] | None) -> str:
    if shape is None:
        return "?"
    return "×".join("?" if dim is None else str(dim) for dim in shape) or "scalar"


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.6g}"


# The nodes as a file.

_CSV_COLUMNS = (
    *("node", "operator", "body", "inputs", "outputs", "macs", "flops", "bias_additions"),
    *("bytes_read", "weight_bytes_read", "bytes_written", "workspace", "traffic", "intensity", "module"),
)


def to_csv(result: ResultJson) -> bytes:
    """Return the nodes as CSV, one row for each; unknown values are empty.

    An input or output is written `name:float[1x3x224x224]`, several with a space between.
    """
    rows: list[list[object]] = [list(_CSV_COLUMNS)]
    for node in result["nodes"]:
        tensors = (" ".join(map(_csv_tensor, node[side])) for side in ("inputs", "outputs"))
        rows.append([node["node"], node["op"], node["body"], *tensors, *(node[key] for key in _CSV_COLUMNS[5:])])
    return as_csv(rows)


def _csv_tensor(tensor: ResultJson) -> str:
    shape = "?" if tensor["shape"] is None else "x".join("?" if dim is None else str(dim) for dim in tensor["shape"])
    return f"{tensor['name']}:{tensor['dtype'] or '?'}[{shape}]"
