"""Check who uses which bytes in a certificate of `onnxtile plan`: `python check_account.py MODEL.onnx CERTIFICATE.json`.

It needs onnx, and `graph.py`, `sharing.py` and `operators.py` beside it, with which `plan --check` reads models, too. It reads from the
model what `check_bound.py` adds up, and compares that with the certificate: the account of all bytes, those of bodies, or the rows of a
plan, whose tensors lie in each other's bytes.

A node needs the bytes of its operands and results while it runs. A view holds the bytes of its operand, and contiguous parts of a Concat
or Split lie in the whole; where a Slice begins may not be known, and then it counts nothing. A result may be written over an operand of its
size that no later node reads, where the table allows it. Any other tensor has bytes of its own, aligned.
"""

from __future__ import annotations

import csv
import json
import sys
from bisect import bisect_left
from collections.abc import Iterable, Mapping
from itertools import chain, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import onnx

if TYPE_CHECKING or __package__:
    from onnxtile.check.graph import STEP, Graph, GraphModel, GraphNode, Value, ValueFacts, inferred
    from onnxtile.check.operators import JOINS, appends, is_contiguous
    from onnxtile.check.sharing import (
        Boxes,
        Link,
        RunOrder,
        SharedStates,
        boxes_of,
        carried,
        held,
        runs_read,
        written_over,
    )
else:
    from graph import STEP, Graph, GraphModel, GraphNode, Value, ValueFacts, inferred
    from operators import JOINS, appends, is_contiguous
    from sharing import Boxes, Link, RunOrder, SharedStates, boxes_of, carried, held, runs_read, written_over

UNITS = "this order, its aliases and whole units"
"""The scope of a proof in which no two buffers share a unit of the alignment."""
WRONG = ValueError, LookupError, TypeError, AttributeError, ArithmeticError, OSError, RuntimeError, MemoryError
Pieces = list[tuple[str, int, int]]
"""Bytes in their order: of each named tensor, those from the first number on, up to the second."""
NO_STATES = SharedStates()


class ByteGraph:
    """A graph, and which node touches which bytes. Views have the pieces of operands; bytes that nobody is known to hold count nothing."""

    def __init__(self, graph: Graph, certificate: Mapping[str, Any]) -> None:
        """Take a graph, of whose values the certificate says the types that the model does not."""
        self.graph, self.nodes, self.spaces = graph, graph.nodes, len(certificate.get("workspaces", ()))
        self.unsure = sum(
            tell(value, certificate["types"].get(value.name)) for value in (*graph.values, *graph.initializers)
        )
        self.value_of = {value.name: value for value in graph.values if value.name}
        self.bytes = {name: value.bytes for name, value in self.value_of.items() if value.bytes is not None}
        # An output that is an initializer, or a value from around a body, takes no bytes here.
        self.outputs = {value.name for value in graph.outputs} & self.value_of.keys()
        states = dict(certificate["states"])
        self.outside = self.outputs - {*states.values()} if certificate["io"] == "outside" else set()
        inputs = {
            v.name
            for v in graph.inputs
            if not v.is_constant and not v.is_streamed and (certificate["io"] == "inside" or v.name in states)
        }
        self.given_names = inputs & self.bytes.keys()
        self.pieces: dict[str, Pieces] = {name: [(name, 0, self.bytes[name])] for name in self.given_names}
        self.pairs: list[tuple[str, str]] = list(states.items())
        self.loose: set[str] = set()
        rows = [self.row(node) for node in self.nodes]
        self.kept_names = self.outputs - self.outside | (
            set() if certificate["overwrite_inputs"] else self.given_names - states.keys()
        )
        self.number(rows, states, certificate["alignment"])
        places = {node: at for at, node in enumerate(self.nodes)}
        self.waits = [{places[v.maker] for v in node.reads() if v.maker in places} for node in self.nodes]
        self.constants = {v.name for node in self.nodes for v in node.outputs if v.is_constant}
        self.dims: dict[str, int] = {}
        # Readers keep the values of Constant nodes as initializers.
        self.idle = {
            node.first_output
            for node in self.nodes
            if node.op_type == "Constant" and self.outputs.isdisjoint(v.name for v in node.outputs)
        }

    def moves(self, node: GraphNode, links: list[Link]) -> str:
        """Return how a node moves bytes: "view", "join" or "cut", "moved" if that is not known, "" if it computes or copies."""
        boxes = boxes_of(node, unsure=True)
        if boxes is None or boxes.operands[0] is None:
            return ""
        # The body of an If, Loop or Scan has no views of what it reads from around it: it copies that.
        is_join, first = boxes.operator in JOINS, boxes.operands[0]
        if not is_join and first.graph is not self.graph and not (self.graph.is_call or first.is_constant):
            return ""
        if links:
            return "view" if links[0].rule == "view" else "join" if is_join else "cut"
        return "" if is_told(node, boxes) else "moved"

    def content(self, value: Value, links: list[Link], kind: str) -> Pieces:
        """Return the pieces of a result. In that of a Concat, the bytes of operands outside of the arena are its own."""
        whole, at = [(value.name, 0, self.bytes[value.name])], 0
        if kind == "moved":
            return []
        if kind != "join" or not links:
            return self.part(links[0]) if links else whole
        pieces = Pieces()
        for link in sorted(links, key=lambda link: -link.at):
            end = -link.at + (link.operand.bytes or 0)
            pieces += [(value.name, at, -link.at)] if at < -link.at else []
            pieces += self.held(link.operand) or [(value.name, -link.at, end)]
            at = end
        return pieces + ([(value.name, at, whole[0][2])] if at < whole[0][2] else [])

    def part(self, link: Link) -> Pieces:
        """Return the pieces of an operand that are those of a view or part; none where they are not known."""
        return self.between(link.operand, link.at, link.at + (link.result.bytes or 0))

    def between(self, value: Value, start: int, stop: int) -> Pieces:
        """Return the pieces of the bytes of a value from `start` to `stop`; none where they are not known."""
        pieces, parts = self.held(value), Pieces()
        if sum(end - begin for _, begin, end in pieces) != value.bytes:
            return []
        for origin, begin, end in pieces:
            low, high = begin + max(start, 0), begin + min(stop, end - begin)
            parts += [(origin, low, high)] if low < high else []
            start, stop = start - (end - begin), stop - (end - begin)
        return parts

    def held(self, value: Value) -> Pieces:
        """Return the pieces of a value; none of one that has no bytes in this graph."""
        return self.pieces.get(value.name, []) if self.value_of.get(value.name, value) is value else []

    def row(self, node: GraphNode) -> tuple[list[str], Pieces, list[tuple[str, str]], bool]:
        """Return the results of a node, the pieces that it reads, those written over operands, and whether one may be over a state."""
        links = list(held(node, NO_STATES))
        kind, reads = self.moves(node, links), node.reads()
        links = links if kind else []
        named = [v for v in node.outputs if v.name in self.bytes and v.name not in self.outside]
        results = [v for v in named if not v.is_constant or v.name in self.outputs]
        parts = [self.part(link) for link in links] if kind == "cut" else []
        # A view of bytes that lie outside lies there, too, unless it is an output, which is a copy of them.
        is_outside = kind in {"view", "cut"} and not self.held(links[0].operand)
        for value in results if not is_outside else [v for v in results if v.name in self.outputs]:
            of_value = [] if is_outside else [link for link in links if link.result is value]
            self.pieces[value.name] = self.content(value, of_value, "" if is_outside else kind)
        written = [] if kind else [(link.result, link.operand) for link in written_over(node)]
        alike = [(v.name, x.name) for v, x in written if v in results and x.name in self.pieces and self.held(x)]
        boxes = boxes_of(node, unsure=True) if kind else None
        whole = [] if boxes is None else [x for x in (boxes.operands if kind == "join" else boxes.operands[:1]) if x]
        self.pairs += [*alike, *((v.name, x.name) for v in results for x in whole if self.held(x))]
        self.loose |= {v.name for v in (*node.outputs, *whole)} if kind and kind != "view" else set()
        parts += [] if kind else self.runs(node)
        left = [] if kind == "moved" else [v for v in reads if not parts or v is not node.inputs[0]]
        read = chain(*parts, *(self.held(v) for v in left))
        return [v.name for v in results], [*read], alike, appends(node.op_type)

    def runs(self, node: GraphNode) -> list[Pieces]:
        """Return the bytes that a node reads of its first operand, where it reads a few runs of them; none where it reads all."""
        first = node.inputs[0] if node.inputs else None
        ends = None if first is None else runs_read(node)
        return [] if first is None or ends is None else [self.between(first, *run) for run in ends]

    def number(self, rows: list[Any], states: Mapping[str, str], unit: int) -> None:
        """Cut tensors into the bytes that are touched as a whole. A part of another may lie at any address, and so may all in its bytes."""
        count = -1
        while count < len(self.loose):
            count = len(self.loose)
            self.loose |= {name for pair in self.pairs if not self.loose.isdisjoint(pair) for name in pair}
        ends: dict[str, set[int]] = {}
        for origin, *both in chain(*self.pieces.values(), *(read for _, read, *_ in rows)):
            ends.setdefault(origin, set()).update(both)
        self.size: dict[str, int] = {}
        self.units: dict[str, tuple[list[int], list[str]]] = {}
        for origin, places in ends.items():
            cuts, is_one = [*pairwise(sorted(places))], len(places) == 2
            names = [origin if is_one else f"{origin}[{low}:{high}]" for low, high in cuts]
            if not self.size.keys().isdisjoint(names):
                raise ValueError(f"two tensors are named as parts of {origin}")
            self.units[origin] = sorted(places), names
            least = unit if is_one and origin not in self.loose else 1
            self.size |= zip(names, (-(-(high - low) // least) * least for low, high in cuts), strict=True)
        before = {self.origin(after): self.origin(state) for state, after in states.items()}
        self.rows = []
        for results, read, alike, is_over in rows:
            ahead = [(v, p) for v in results for p in read if is_over and p[0] == before.get(self.origin(v))]
            over = [(v, piece) for v, x in alike for piece in self.pieces[x]] + ahead
            spare = {name: self.names_of(self.pieces[name]) for name in dict(over)}
            touched = self.names_of(read).union(*(self.names_of(self.pieces.get(v, [])) for v in results))
            spares = sum(self.size[name] for names in spare.values() for name in names)
            self.rows.append((touched, spares, self.names_of(piece for _, piece in over)))
        used = set().union(*(touched for touched, _, _ in self.rows))
        self.kept = self.names_of(piece for v in self.kept_names for piece in self.pieces.get(v, []))
        self.given = self.names_of(piece for v in self.given_names for piece in self.pieces[v]) & (used | self.kept)

    def origin(self, name: str) -> str:
        """Return the tensor whose bytes a tensor has first."""
        return next((origin for origin, _, _ in self.pieces.get(name, [])), name)

    def names_of(self, pieces: Iterable[tuple[str, int, int]]) -> set[str]:
        """Return the names of the bytes in pieces."""
        cuts = ((*self.units[origin], begin, end) for origin, begin, end in pieces)
        return {n for at, names, begin, end in cuts for n in names[bisect_left(at, begin) : bisect_left(at, end)]}


# The certificate, compared with the graph.


def graph_of(proto: onnx.ModelProto, certificate: Mapping[str, Any]) -> ByteGraph:
    """Return the problem of a model with the dimensions and the types that the certificate says."""
    dims = [dim for value in proto.graph.input for dim in value.type.tensor_type.shape.dim]
    bound = {dim.dim_param: certificate["dims"][dim.dim_param] for dim in dims if dim.dim_param in certificate["dims"]}
    for dim in (dim for dim in dims if dim.dim_param in bound):
        dim.dim_value = bound[dim.dim_param]
    problem = ByteGraph(GraphModel(onnx.shape_inference.infer_shapes(proto, data_prop=True)).graph, certificate)
    problem.dims = bound
    return problem


def tell(value: Value, type_and_shape: list[int] | None) -> bool:
    """Note the element type and sizes that a certificate says, where the model says none; return whether it does not."""
    if type_and_shape is None or (value.shape is not None and value.dtype is not None):
        return False
    value.tell(ValueFacts(tuple(type_and_shape[1:]), type_and_shape[0]))
    return True


def is_told(node: GraphNode, boxes: Boxes) -> bool:
    """Return whether it is known where the boxes of a node are, so that they are copied if they are no part of the whole."""
    operands = boxes.operands if boxes.operator in JOINS else boxes.operands[:1]
    values = [*operands, *(v for v in boxes.results if v.name)]
    if boxes_of(node) is None or any(v is None or v.bytes is None for v in values):
        return False
    if boxes.operator != "Slice" or node.opset < 10:
        return True
    whole, part = (v.shape or () for v in (node.inputs[0], node.outputs[0]) if v is not None)
    return not is_contiguous(whole, part) or all(v is None or v.whole_numbers is not None for v in node.inputs[1:])


def body_of(problem: ByteGraph, certificate: Mapping[str, Any], body: Mapping[str, Any]) -> ByteGraph:
    """Return the graph of a body, whose inputs and outputs lie in its workspace. Raises ValueError where a node has no such body."""
    node = next((node for node in problem.nodes if node.first_output == body["node"]), None)
    if node is None or all(value.is_constant for value in node.outputs):
        raise ValueError(f"no step of the plan makes {body['node']}")
    terms = {**body, "alignment": certificate["alignment"], "io": "inside", "overwrite_inputs": False, "states": []}
    if node.function is not None and node.function.is_open:
        return ByteGraph(inferred(node), terms)
    graph = node.entered().get(body["attribute"])
    if graph is None:
        raise ValueError(f"{body['node']} runs as one kernel, or has no body {body['attribute']!r}")
    terms["states"] = [(before.name, after.name) for before, after in carried(node, graph)]
    return ByteGraph(graph, terms)


def account_of(problem: ByteGraph, certificate: Mapping[str, Any]) -> dict[str, Any]:
    """Return who uses which bytes in the order of a certificate, after a node for the caller before the run, and before one after it.

    In every order a node waits for those that it reads; in the scope "this order" it waits for the one before it.
    """
    require_order(problem, certificate)
    positions = {name: at for at, name in enumerate(certificate["order"], start=1)}
    rows = {node.first_output: (*problem.rows[at], problem.waits[at]) for at, node in enumerate(problem.nodes)}
    nothing = {"over": [], "spares": 0, "workspace": 0}
    nodes = [{"name": "", "waits": [], "uses": sorted(problem.given), **nothing}]
    for name in certificate["order"]:
        uses, spares, over, waits = rows[name]
        before = {problem.nodes[other].first_output for other in waits} - problem.idle
        row = {"name": name, "waits": sorted({0, *map(positions.__getitem__, before)}), "uses": sorted(uses)}
        inside = max((body["arena"] for body in certificate["bodies"] if body["node"] == name), default=0)
        row |= {"over": sorted(over), "spares": spares, "workspace": certificate["workspaces"].get(name, 0) + inside}
        nodes.append(row)
    nodes.append({"name": "", "waits": list(range(len(nodes))), "uses": sorted(problem.kept), **nothing})
    if certificate["scope"] != "any order":
        nodes = [node | {"waits": [at - 1] if at else []} for at, node in enumerate(nodes)]
    return {"bytes": problem.size, "nodes": nodes}


def require_order(problem: ByteGraph, certificate: Mapping[str, Any]) -> None:
    """Raise ValueError unless the nodes can run in the order of the certificate, which for its scope is that of a planned model."""
    order, names, steps = certificate["order"], [node.first_output for node in problem.nodes], steps_of(problem)
    positions = {name: step for step, name in enumerate(order)}
    if sorted(order) != sorted({*names} - problem.idle):
        raise ValueError("the order does not have each node once")
    pairs = [(names[at], names[other]) for at, others in enumerate(problem.waits) for other in others]
    if any(positions[other] > positions[name] for name, other in pairs if {name, other} <= positions.keys()):
        raise ValueError("a node of the order runs before one that it reads")
    if certificate["scope"] != "any order" and steps and sorted(order, key=steps.__getitem__) != order:
        raise ValueError("the order is not that of the plan in the model")


def steps_of(problem: ByteGraph) -> dict[str, int]:
    """Return the step of each node in a planned model; nothing for another."""
    return {node.first_output: int(node.marks[STEP]) for node in problem.nodes if STEP in node.marks}


def require_steps(problem: ByteGraph, certificate: Mapping[str, Any]) -> None:
    """Raise ValueError unless the steps of the certificate are those of a planned model, or, of another model, of one node each."""
    claimed, steps = certificate["steps"], steps_of(problem)
    if steps and claimed != [steps[name] for name in certificate["order"]]:
        raise ValueError("the steps are not those of the plan in the model")
    if not steps and any(step >= later for step, later in pairwise([-1, *claimed, len(problem.nodes)])):
        raise ValueError("the steps do not follow each other, and the model says none")


def lives_of(problem: ByteGraph, certificate: Mapping[str, Any]) -> dict[str, range]:
    """Return the steps in which each tensor lives, in the order of the certificate."""
    nodes = {node.first_output: node for node in problem.nodes}
    order = tuple(nodes[name] for name in certificate["order"])
    kept, given = (
        frozenset(map(problem.value_of.__getitem__, names)) for names in (problem.kept_names, problem.given_names)
    )
    line = RunOrder(problem.graph, order, tuple(certificate["steps"]), tuple(certificate["order"]), kept, tuple(given))
    results = (value for node in order for value in node.outputs if value.name)
    return {value.name: range(line.first(value), line.last(value) + 1) for value in (*given, *results)}


def held_steps(
    problem: ByteGraph, certificate: Mapping[str, Any], row: Mapping[str, Any], lives: Mapping[str, range]
) -> list[int]:
    """Return the steps of a row in which tensors hold all of its bytes."""
    ends: dict[int, int] = {}
    members = [(start, name) for name, (owner, start) in certificate["places"].items() if owner == row["owner"]]
    for start, name in sorted(members):
        for step in lives.get(name, ()) if name in problem.bytes else ():
            end = ends.get(step, row["start"])
            ends[step] = max(end, start + problem.bytes[name]) if start <= end else end
    is_full = [ends.get(step, -1) >= row["start"] + row["size"] for step in range(row["first"], row["last"] + 1)]
    return [row["first"] + at for at, full in enumerate(is_full) if full or row["workspace"]]


def unheld(problem: ByteGraph, certificate: Mapping[str, Any]) -> str:
    """Return the first row whose bytes no tensors hold in one of its steps; "" where all are held."""
    require_order(problem, certificate)
    require_steps(problem, certificate)
    lives, end = lives_of(problem, certificate), max(certificate["steps"])
    outside = (n for n, row in certificate["rows"].items() if not 0 <= row["first"] <= row["last"] <= end)
    steps = ((n, row, len(held_steps(problem, certificate, row, lives))) for n, row in certificate["rows"].items())
    return next(chain(outside, (n for n, row, held in steps if held <= row["last"] - row["first"])), "")


def refusal_of_bodies(problem: ByteGraph, certificate: Mapping[str, Any]) -> str:
    """Return the reason why the bytes of a body are not those of the model; "" where all are."""
    for body in certificate["bodies"]:
        inside = body_of(problem, certificate, body)
        if body["alignment"] != certificate["alignment"] or body["scope"] != "any order" or "account" not in body:
            return f"the body of {body['node']} has no proof of its bytes in every order"
        if reason := refusal(inside, body):
            return f"the body of {body['node']}: {reason}"
        problem.unsure, problem.spaces = problem.unsure + inside.unsure, problem.spaces + inside.spaces
    return ""


def refusal(problem: ByteGraph, certificate: Mapping[str, Any]) -> str:
    """Return the reason why the account of a certificate is not that of the model; "" where it is."""
    if certificate["claim"] == "any order" != certificate["scope"]:
        return f"a proof for {certificate['scope']} is none for any order"
    if reason := refusal_of_bodies(problem, certificate):
        return reason
    if "account" in certificate:
        account = account_of(problem, certificate)
        differing = next((key for key in account if account[key] != certificate["account"].get(key)), None)
        return f"the {differing} in the certificate are not those of the model" if differing else ""
    tree, unit = certificate["proof"]["tree"], certificate["alignment"]
    pinned = ["pin" in certificate["rows"][name] for name in tree.get("chain", ())]
    if certificate["scope"] == "any order" and ([*tree], pinned) != (["chain"], [True]):
        return "only one pinned row takes its bytes in any order"
    whole = certificate["scope"] == UNITS
    if reason := shared(certificate["rows"], unit, whole=whole):
        return reason
    for name, row in certificate["rows"].items():
        # An owner lies at a multiple of the alignment. Rows that live at once cannot both hold the same such address.
        first, end = -(-(row["start"] - whole * (unit - 1)) // unit), -(-(row["start"] + row["size"]) // unit)
        if row["bytes"] > (end - first) * unit:
            return f"the row {name} holds {(end - first) * unit} bytes, not {row['bytes']}"
        if "pin" in row and row["pin"] != certificate["pins"].get(row["owner"], -unit) + first * unit:
            return f"the row {name} is not pinned to {row['pin']}"
    name = unheld(problem, certificate)
    return f"not all bytes live that the certificate counts: {name}" if name else ""


def shared(rows: Mapping[str, Any], unit: int, *, whole: bool = False) -> str:
    """Return the reason why rows count bytes twice, or in no step; "" where each counts bytes of its own, with `whole` in units."""
    by_owner: dict[str, list[str]] = {}
    for name, row in rows.items():
        numbers = [row[key] for key in ("start", "size", "bytes", "first", "last")]
        if any(type(number) is not int for number in numbers) or row["first"] > row["last"] or row["start"] < 0:
            return f"the row {name} has no steps or no bytes"
        for other in by_owner.setdefault(row["owner"], []):
            low, high = sorted((row, rows[other]), key=lambda span: int(span["start"]))
            together = max(low["first"], high["first"]) <= min(low["last"], high["last"])
            start = high["start"] - whole * (unit - 1)
            if together and -(-(low["start"] + low["size"]) // unit) > -(-start // unit):
                return f"the rows {name} and {other} hold the same bytes"
        by_owner[row["owner"]].append(name)
    return ""


def assumed(certificate: Mapping[str, Any], problem: ByteGraph) -> str:
    """Return what the certificate says and the model does not, as words."""
    options = {key: certificate[key] for key in ("alignment", "io", "overwrite_inputs")}
    words = [f"{key} {value}" for key, value in (options | problem.dims).items()]
    words += [f"state {before} to {after}" for before, after in certificate.get("states", [])]
    words += (
        [f"{name} at {offset}" for name, offset in certificate["pins"].items()] if "account" not in certificate else []
    )
    spaces = (
        problem.spaces
        if "account" in certificate
        else sum(bool(row["workspace"]) for row in certificate["rows"].values())
    )
    counts = (problem.unsure, "shapes"), (spaces, "workspaces")
    return ", ".join([*words, *(f"{count} {kind}" for count, kind in counts if count)])


def refusal_of_problem(problem: Path, certificate: Mapping[str, Any]) -> str:
    """Return the first row of a certificate that is none of the buffers of a bare problem in CSV; "" where all are."""
    with problem.open(newline="", encoding="utf-8") as file:
        buffers = {row.get("id") or row["buffer"]: row for row in csv.DictReader(file)}
    if any(buffer.get(key) for buffer in buffers.values() for key in ("gaps", "alignment", "part_of")):
        return "buffers with gaps, parts or an alignment of their own are not compared"
    for name, row in certificate["rows"].items():
        lower, upper, size = (int(buffers[row["owner"]][key]) for key in ("lower", "upper", "size"))
        is_inside = row["start"] == 0 and row["size"] == size and lower <= row["first"] <= row["last"] < upper
        if (
            not is_inside
            or row["bytes"] > -(-size // certificate["alignment"]) * certificate["alignment"]
            or "pin" in row
        ):
            return f"the row {name} is not that of the problem"
    return ""


def main(model: str, certificate: str) -> str:
    """Return a line that says whether the account is that of the model. Raises ValueError with the reason where it is not."""
    document = json.loads(Path(certificate).read_text(encoding="utf-8"))
    if document["proof"] is None:
        raise ValueError(document["reason"])
    if model.endswith(".csv"):
        if reason := refusal_of_problem(Path(model), document) or shared(document["rows"], document["alignment"]):
            raise ValueError(reason)
        return f"the rows are those of the problem; the certificate says: alignment {document['alignment']}"
    problem = graph_of(onnx.load(model, load_external_data=False), document)
    if reason := refusal(problem, document):
        raise ValueError(reason)
    return f"the account is that of the model; the certificate says: {assumed(document, problem)}"


if __name__ == "__main__":
    try:
        sys.stdout.write(f"{ascii(main(*sys.argv[1:]))[1:-1]}\n")
    except WRONG as error:
        sys.exit(f"refused: {ascii(str(error))[1:-1][:300]}")
