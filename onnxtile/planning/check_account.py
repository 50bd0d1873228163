"""Check who uses which bytes in a certificate of `onnxtile plan`: `python check_account.py MODEL.onnx CERTIFICATE.json`. It needs onnx.

`check_bound.py` checks the bound; this script reads from the model what the bound adds up. A node needs the bytes of its operands and
results while it runs. A view holds the bytes of its operand, and contiguous parts of a Concat or Split lie in the whole; a contiguous
Slice counts nothing. A result may be written over an operand of its size that no later node reads, but for the operators in COPIES. Any
other tensor has bytes of its own, aligned. Of a plan with rows, the tensors lie in each other's bytes as the certificate says.
"""

from __future__ import annotations

import csv
import json
import math
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import onnx

VIEW, IN_PLACE = "pkg.onnxtile.view", "pkg.onnxtile.in_place"
VIEWS = {"Cast", "CastLike", "Dropout", "Flatten", "Identity", "Reshape", "Squeeze", "Unsqueeze"}
COPIES = re.compile(
    "Conv|MatMul|QGemm|Pool|Attention|Transpose|Concat|Split|Slice|Gather|Resize|Upsample|LRN|Reduce|Expand|Tile|Pad|Einsum|RNN|LSTM|GRU|"
    "ToSpace|ToDepth|ArgM|TopK|Hardmax|CumSum|Rotary|Embed|Col2Im|Unique|^If$|^Loop$|^Scan$|DFT|Quantize|NonMax|Roi|Grid"
)
WIDTH = {t: onnx.helper.tensor_dtype_to_np_dtype(t).itemsize for t in range(1, 17) if t != onnx.TensorProto.STRING}


def types_of(graph: onnx.GraphProto, said: Mapping[str, list[int]]) -> tuple[dict[str, Any], int]:
    """Return the shape, element width, element type and bytes of each tensor, and how many of them only the certificate says."""
    found = {t.name: (tuple(t.dims), t.data_type) for t in graph.initializer}
    for value in (*graph.input, *graph.value_info, *graph.output):
        kind = value.type.tensor_type
        if kind.HasField("shape") and all(dim.HasField("dim_value") for dim in kind.shape.dim):
            found[value.name] = tuple(dim.dim_value for dim in kind.shape.dim), kind.elem_type
    others = {name: (tuple(shape), code) for name, (code, *shape) in said.items() if name not in found}
    known = {name: kind for name, kind in (found | others).items() if kind[1] in WIDTH}
    return {v: (s, WIDTH[t], t, math.prod(s) * WIDTH[t]) for v, (s, t) in known.items()}, len(others)


def reads(node: onnx.NodeProto) -> set[str]:
    """Return the names that a node reads, in its bodies too."""
    graphs = [g for a in node.attribute for g in (*a.graphs, *([a.g] if a.HasField("g") else []))]
    return {*node.input, *(name for g in graphs for inner in g.node for name in reads(inner))} - {""}


def moves(node: onnx.NodeProto, mark: Mapping[str, str], types: Mapping[str, Any]) -> str:
    """Return how a node moves bytes: "view", "join" or "cut", "moved" where that is not known, "" for a node that computes or copies."""
    made, of = node.output[0], [v for v in (node.input[2::3] if node.op_type == "QLinearConcat" else node.input) if v]
    if VIEW not in mark and node.op_type not in {*VIEWS, "Concat", "QLinearConcat", "Split", "Slice"}:
        return ""
    if not {made, of[0]} <= types.keys():
        return "moved"
    if VIEW in mark or node.op_type in VIEWS:
        return "view" if types[of[0]][2:] == types[made][2:] else "moved" if VIEW in mark else ""
    outer, inner, others = types[of[0]][0], types[made][0], of if "Concat" in node.op_type else node.output
    axis = next((a.i for a in node.attribute if a.name == "axis"), int("Concat" in node.op_type)) % max(len(outer), 1)
    if node.op_type == "Slice" and outer == inner:
        return "view"
    if node.op_type == "Slice":
        axis = next((at for at, length in enumerate(inner) if length != 1), len(inner))
        return "cut" if outer[axis + 1 :] == inner[axis + 1 :] else ""
    is_part = math.prod(outer[:axis]) == 1 or len(others) == 1
    return "" if not is_part else "cut" if node.op_type == "Split" else "join"


class ByteGraph:
    """Tensors with bytes of their own: `users` has the nodes that touch each as bits, then the caller before and after the run."""

    def __init__(self, model: onnx.ModelProto, said: Mapping[str, Any]) -> None:
        self.nodes, graph, is_inside = list(model.graph.node), model.graph, said["io"] == "inside"
        self.types, self.unsure = types_of(graph, said["types"])
        self.marks = {(f.domain, f.name): {p.key: p.value for p in f.metadata_props} for f in model.functions}
        self.outputs, self.constants = {v.name for v in graph.output}, {t.name for t in graph.initializer}
        self.outside = self.outputs if said["io"] == "outside" else set()
        kinds = [moves(node, self.marks.get((node.domain, node.op_type), {}), self.types) for node in self.nodes]
        self.dims: dict[str, int] = {}
        self.root: dict[str, str] = {}
        for node, kind in zip(self.nodes, kinds, strict=True):
            if kind == "view":
                self.root[node.output[0]] = self.root.get(node.input[0], node.input[0])
        splits = [
            node for node, kind in zip(self.nodes, kinds, strict=True) if kind == "cut" and node.op_type == "Split"
        ]
        self.parts = {
            self.root.get(n.input[0], n.input[0]): {*n.output} for n in splits if {*n.output} <= self.types.keys()
        }
        states = {pair[0] for pair in said["states"]}
        self.outside -= {pair[1] for pair in said["states"]}
        given = {
            v.name for v in graph.input if (is_inside or v.name in states) and v.name in self.types
        } - self.constants
        self.held = {name: self.parts.get(name, {name}) for name in given}
        self.pairs: list[tuple[str, str]] = []
        self.loose: set[str] = set()
        rows = [self.row(node, kind) for node, kind in zip(self.nodes, kinds, strict=True)]
        self.given_names = given
        self.kept_names = self.outputs - self.outside | (set() if said["overwrite_inputs"] else given - states)
        self.number(rows, said["alignment"])
        makers = {name: at for at, node in enumerate(self.nodes) for name in node.output}
        self.waits = [{makers[name] for name in reads(node) if name in makers} for node in self.nodes]
        # Readers keep the values of Constant nodes as initializers.
        self.idle = {
            name_of(node) for node in self.nodes if node.op_type == "Constant" and not {*node.output} & self.outputs
        }

    def row(self, node: onnx.NodeProto, kind: str) -> tuple[set[str], set[str], set[str]]:
        """Return the bytes that a node touches, by tensor, the results that may be written over operands, and the bytes of these."""
        mark, names = self.marks.get((node.domain, node.op_type)), reads(node)
        made = [v for v in node.output if v in self.types and v not in self.outside]
        if node.op_type == "Constant" or (names and names <= self.constants):
            self.constants |= {*node.output}
            made = [v for v in made if v in self.outputs]
        first, held = node.input[0] if node.input else "", self.held
        is_cut = kind == "cut" and held.get(first) == self.parts.get(self.root.get(first, first)) == {*node.output}
        for name in made:
            joined = {unit for x in node.input for unit in held.get(x, ())}
            held[name] = {
                "": self.parts.get(name, {name}),
                "view": held.get(first, set()),
                "join": joined,
                "cut": {name} if is_cut else set(),
                "moved": set(),
            }[kind]
        may = list(node.input) if mark is None else [node.input[at] for at in json.loads(mark.get(IN_PLACE, "[]"))]
        may = (
            [] if kind or (mark is None and COPIES.search(node.op_type)) else may[2:] if node.op_type == "Gemm" else may
        )
        alike = [(v, x) for v in made for x in may if x in held and self.types[x][:2] == self.types[v][:2]]
        self.pairs += [*alike, *((v, x) for v in made for x in node.input if kind and x in held)]
        self.loose |= {*node.output, first} if kind and kind != "view" else set()
        names = names - {first} if kind == "cut" else set() if kind == "moved" else names
        touched = {unit for x in (*made, *names) for unit in held.get(x, ())}
        return touched, {v for v, _ in alike}, {unit for _, x in alike for unit in held[x]}

    def number(self, rows: list[Any], unit: int) -> None:
        """Find the bytes of the tensors with bytes of their own. A part of another may lie at any address, and so may all in its bytes."""
        count = -1
        while count < len(self.loose):
            count = len(self.loose)
            self.loose |= {name for pair in self.pairs if not self.loose.isdisjoint(pair) for name in pair}
        size = {
            v: self.types[v][3] if v in self.loose else -(-self.types[v][3] // unit) * unit
            for v in set().union(*self.held.values())
        }
        used = set().union(*(touched for touched, _, _ in rows))
        self.size, self.rows = size, rows
        self.kept = {unit for v in self.kept_names for unit in self.held.get(v, ())}
        self.given = {unit for v in self.given_names for unit in self.held[v]} & (used | self.kept)

    def account(self, said: Mapping[str, Any]) -> dict[str, Any]:
        """Return who uses which bytes in the order of a certificate, after a node for the caller before the run, and before one after it.

        In every order a node waits for those that it reads; in the scope "this order" it waits for the one before it.
        """
        self.require_order(said["order"])
        place = {name: at for at, name in enumerate(said["order"], start=1)}
        rows = {name_of(node): (*self.rows[at], self.waits[at]) for at, node in enumerate(self.nodes)}
        nothing = {"over": [], "spares": 0, "workspace": 0}
        nodes = [{"name": "", "waits": [], "uses": sorted(self.given), **nothing}]
        for name in said["order"]:
            uses, made, over, waits = rows[name]
            before = {name_of(self.nodes[other]) for other in waits} - self.idle
            row = {"name": name, "waits": sorted({0, *map(place.__getitem__, before)}), "uses": sorted(uses)}
            row |= {"over": sorted(over), "spares": sum(self.size[unit] for v in made for unit in self.held[v])}
            nodes.append(row | {"workspace": said["workspaces"].get(name, 0)})
        nodes.append({"name": "", "waits": list(range(len(nodes))), "uses": sorted(self.kept), **nothing})
        if said["scope"] != "any order":
            nodes = [node | {"waits": [at - 1] if at else []} for at, node in enumerate(nodes)]
        return {"bytes": self.size, "nodes": nodes}

    def require_order(self, order: list[str]) -> None:
        """Raise ValueError unless the nodes can run in this order."""
        names = [name_of(node) for node in self.nodes]
        place = {name: step for step, name in enumerate(order)}
        if sorted(order) != sorted({*names} - self.idle):
            raise ValueError("the order does not have each node once")
        pairs = [(names[at], names[other]) for at, others in enumerate(self.waits) for other in others]
        if any(place[other] > place[name] for name, other in pairs if {name, other} <= place.keys()):
            raise ValueError("a node of the order runs before one that it reads")

    def lives(self, said: Mapping[str, Any]) -> dict[str, range]:
        """Return the steps in which each tensor lives, in the order of the certificate."""
        step = dict(zip(said["order"], said["steps"], strict=True))
        touched: dict[str, list[int]] = {name: [0] for name in self.given_names}
        for node in self.nodes:
            for name in {*reads(node), *node.output} if name_of(node) in step else ():
                touched.setdefault(name, []).append(step[name_of(node)])
        for name in self.kept_names:
            touched.setdefault(name, []).append(max(step.values()))
        return {name: range(min(steps), max(steps) + 1) for name, steps in touched.items()}

    def held_steps(self, said: Mapping[str, Any], row: Mapping[str, Any], lives: Mapping[str, range]) -> list[int]:
        """Return the steps of a row in which tensors hold all of its bytes."""
        ends: dict[int, int] = {}
        own = [(start, name) for name, (owner, start) in said["places"].items() if owner == row["owner"]]
        for start, name in sorted(own):
            for step in lives.get(name, ()) if name in self.types else ():
                end = ends.get(step, row["start"])
                ends[step] = max(end, start + self.types[name][3]) if start <= end else end
        is_full = [ends.get(step, -1) >= row["start"] + row["size"] for step in range(row["first"], row["last"] + 1)]
        return [row["first"] + at for at, full in enumerate(is_full) if full or row["workspace"]]

    def unlike(self, said: Mapping[str, Any]) -> str:
        """Return the first row whose bytes no tensors hold in one of its steps; "" where all are held."""
        self.require_order(said["order"])
        lives = self.lives(said)
        steps = {name: len(self.held_steps(said, row, lives)) for name, row in said["rows"].items()}
        return next((n for n, row in said["rows"].items() if steps[n] <= row["last"] - row["first"]), "")


def name_of(node: onnx.NodeProto) -> str:
    """Return the first result of a node, which names it."""
    return next(name for name in node.output if name)


def graph_of(model: onnx.ModelProto, said: Mapping[str, Any]) -> ByteGraph:
    """Return the problem of a model with the dimensions and the types that the certificate says."""
    named = [
        dim for value in model.graph.input for dim in value.type.tensor_type.shape.dim if dim.dim_param in said["dims"]
    ]
    bound = {dim.dim_param: said["dims"][dim.dim_param] for dim in named}
    for dim in named:
        dim.dim_value = bound[dim.dim_param]
    problem = ByteGraph(onnx.shape_inference.infer_shapes(model, data_prop=True), said)
    problem.dims = bound
    return problem


def refusal(problem: ByteGraph, said: Mapping[str, Any]) -> str:
    """Return the reason why the account of a certificate is not that of the model; "" where it is."""
    if said["claim"] == "any order" != said["scope"]:
        return f"a proof for {said['scope']} is none for any order"
    if "account" in said:
        account = problem.account(said)
        differing = next((key for key in account if account[key] != said["account"].get(key)), None)
        return f"the {differing} in the certificate are not those of the model" if differing else ""
    tree, unit = said["proof"]["tree"], said["alignment"]
    if said["scope"] == "any order" and [*tree] + ["pin" in said["rows"][name] for name in tree.get("chain", ())] != [
        "chain",
        True,
    ]:
        return "only one pinned row takes its bytes in any order"
    if reason := shared(said["rows"], unit):
        return reason
    for name, row in said["rows"].items():
        # An owner lies at a multiple of the alignment. Rows that live at once cannot both hold the same such address.
        first, end = -(-row["start"] // unit), -(-(row["start"] + row["size"]) // unit)
        if row["bytes"] > (end - first) * unit:
            return f"the row {name} holds {(end - first) * unit} bytes, not {row['bytes']}"
        if "pin" in row and row["pin"] != said["pins"].get(row["owner"], -unit) + first * unit:
            return f"the row {name} is not pinned to {row['pin']}"
    unlike = problem.unlike(said)
    return f"not all bytes live that the certificate counts: {unlike}" if unlike else ""


def shared(rows: Mapping[str, Any], unit: int) -> str:
    """Return the reason why rows count bytes twice, or in no step; "" where each counts bytes of its own."""
    by_owner: dict[str, list[str]] = {}
    for name, row in rows.items():
        numbers = [row[key] for key in ("start", "size", "bytes", "first", "last")]
        if any(type(number) is not int for number in numbers) or row["first"] > row["last"] or row["start"] < 0:
            return f"the row {name} has no steps or no bytes"
        for other in by_owner.setdefault(row["owner"], []):
            low, high = sorted((row, rows[other]), key=lambda one: int(one["start"]))
            together = max(low["first"], high["first"]) <= min(low["last"], high["last"])
            if together and -(-(low["start"] + low["size"]) // unit) > -(-high["start"] // unit):
                return f"the rows {name} and {other} hold the same bytes"
        by_owner[row["owner"]].append(name)
    return ""


def assumed(said: Mapping[str, Any], problem: ByteGraph) -> str:
    """Return what the certificate says and the model does not, as words."""
    options = {key: said[key] for key in ("alignment", "io", "overwrite_inputs") if key in said}
    words = [f"{key} {value}" for key, value in (options | problem.dims).items()]
    words += [f"state {given} to {made}" for given, made in said.get("states", [])]
    words += [f"{name} at {offset}" for name, offset in said["pins"].items()] if "account" not in said else []
    spaces = (
        len(said["workspaces"]) if "account" in said else sum(bool(row["workspace"]) for row in said["rows"].values())
    )
    return ", ".join(
        [*words, *(f"{count} {kind}" for count, kind in ((problem.unsure, "shapes"), (spaces, "workspaces")) if count)]
    )


def refusal_of_problem(problem: Path, said: Mapping[str, Any]) -> str:
    """Return the first row of a certificate that is none of the buffers of a bare problem in CSV; "" where all are."""
    with problem.open(newline="", encoding="utf-8") as file:
        buffers = {row.get("id") or row["buffer"]: row for row in csv.DictReader(file)}
    if any(buffer.get(key) for buffer in buffers.values() for key in ("gaps", "alignment", "part_of")):
        return "buffers with gaps, parts or an alignment of their own are not compared"
    for name, row in said["rows"].items():
        lower, upper, size = (int(buffers[row["owner"]][key]) for key in ("lower", "upper", "size"))
        is_inside = row["start"] == 0 and row["size"] == size and lower <= row["first"] <= row["last"] < upper
        if not is_inside or row["bytes"] > -(-size // said["alignment"]) * said["alignment"] or "pin" in row:
            return f"the row {name} is not that of the problem"
    return ""


def main(model: str, certificate: str) -> str:
    """Return a line that says whether the account is that of the model. Raises ValueError with the reason where it is not."""
    said = json.loads(Path(certificate).read_text(encoding="utf-8"))
    if said["proof"] is None:
        raise ValueError(said["reason"])
    if model.endswith(".csv"):
        if reason := refusal_of_problem(Path(model), said) or shared(said["rows"], said["alignment"]):
            raise ValueError(reason)
        return f"the rows are those of the problem; the certificate says: alignment {said['alignment']}"
    problem = graph_of(onnx.load(model, load_external_data=False), said)
    if reason := refusal(problem, said):
        raise ValueError(reason)
    return f"the account is that of the model; the certificate says: {assumed(said, problem)}"


if __name__ == "__main__":
    try:
        sys.stdout.write(f"{ascii(main(*sys.argv[1:]))[1:-1]}\n")
    except (
        ValueError,
        LookupError,
        TypeError,
        AttributeError,
        ArithmeticError,
        OSError,
        RuntimeError,
        MemoryError,
    ) as error:
        sys.exit(f"refused: {ascii(str(error))[1:-1][:300]}")
