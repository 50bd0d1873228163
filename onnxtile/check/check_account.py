"""Check who uses which bytes in a certificate of `onnxtile plan`: `python check_account.py MODEL.onnx CERTIFICATE.json`.

It needs onnx, and the table of operators in `operators.py` beside it. It reads from the model what `check_bound.py` adds up, and compares
that with the certificate: the account of all bytes, those of bodies, or the rows of a plan, whose tensors lie in each other's bytes.

A node needs the bytes of its operands and results while it runs. A view holds the bytes of its operand, and contiguous parts of a Concat
or Split lie in the whole; a contiguous Slice counts nothing. A result may be written over an operand of its size that no later node reads,
where the table allows it. Any other tensor has bytes of its own, aligned.
"""

from __future__ import annotations

import csv
import json
import math
import sys
from bisect import bisect_left
from collections.abc import Iterable, Mapping
from itertools import accumulate, chain, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import onnx

if TYPE_CHECKING or __package__:
    import onnxtile.check.operators as table
else:
    import operators as table

STEP, META_OP, VIEW, IN_PLACE = (f"pkg.onnxtile.{mark}" for mark in ("step", "meta_op", "view", "in_place"))
UNITS = "this order, its aliases and whole units"
"""The scope of a proof in which no two buffers share a unit of the alignment."""
WRONG = ValueError, LookupError, TypeError, AttributeError, ArithmeticError, OSError, RuntimeError, MemoryError
WIDTH = {t: onnx.helper.tensor_dtype_to_np_dtype(t).itemsize for t in range(1, 17) if t != onnx.TensorProto.STRING}
Pieces = list[tuple[str, int, int]]
"""Bytes in their order: of each named tensor, those from the first number on, up to the second."""


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


def name_of(node: onnx.NodeProto) -> str:
    """Return the first result of a node, which names it."""
    return next(name for name in node.output if name)


def reads(node: onnx.NodeProto) -> set[str]:
    """Return the names that a node reads, and that its bodies read from around them."""
    graphs = [g for a in node.attribute for g in (*a.graphs, *([a.g] if a.HasField("g") else []))]
    return {*node.input, *(name for graph in graphs for name in captured(graph))} - {""}


def captured(graph: onnx.GraphProto) -> set[str]:
    """Return the names that a body reads from around it."""
    own = {v.name for v in graph.input}.union((t.name for t in graph.initializer), *(n.output for n in graph.node))
    return {v.name for v in graph.output}.union(*map(reads, graph.node)) - own


def whole_numbers(graph: onnx.GraphProto) -> dict[str, list[int]]:
    """Return the elements of the constants that are up to eight whole numbers, by name."""
    made = [(node.output[0], a) for node in graph.node if node.op_type == "Constant" for a in node.attribute]
    # In the place of a tensor, a Constant may have the numbers themselves.
    listed = [(name, [a.i] if a.name == "value_int" else [*a.ints]) for name, a in made if "value_int" in a.name]
    held = [*((name, a.t) for name, a in made), *((t.name, t) for t in graph.initializer)]
    tensors = [(name, t) for name, t in held if t.data_type in (6, 7)]
    found = [(name, t) for name, t in tensors if math.prod(t.dims) <= 8 and t.data_location != t.EXTERNAL]
    listed += [(name, onnx.numpy_helper.to_array(t).ravel().tolist()) for name, t in found]
    return {name: numbers for name, numbers in listed if len(numbers) <= 8}


def joined(node: onnx.NodeProto) -> list[str]:
    """Return the operands that a node joins, where it is a Concat."""
    return [v for v in (node.input[2::3] if node.op_type == "QLinearConcat" else node.input) if v]


class ByteGraph:
    """A graph, and which node touches which bytes. Views have the pieces of operands; bytes that nobody is known to hold count nothing."""

    def __init__(
        self, model: onnx.ModelProto, graph: onnx.GraphProto, said: Mapping[str, Any], around: Iterable[str] = ()
    ) -> None:
        """Take a graph of `model`, in which names from `around` it are constants."""
        self.nodes, self.model, self.dims = list(graph.node), model, dict[str, int]()
        (self.types, self.unsure), self.spaces = types_of(graph, said["types"]), len(said.get("workspaces", ()))
        self.marks = {(f.domain, f.name): {p.key: p.value for p in f.metadata_props} for f in model.functions}
        # From version 4 of the format on, an initializer that is an input is a default that the caller may override.
        open_names = {v.name for v in graph.input} if model.ir_version >= 4 else set()
        self.numbers = {name: numbers for name, numbers in whole_numbers(graph).items() if name not in open_names}
        self.outputs = {v.name for v in graph.output}
        self.constants = {t.name for t in graph.initializer}.difference(open_names).union(around)
        states = dict(said["states"])
        self.outside = self.outputs - {*states.values()} if said["io"] == "outside" else set()
        inputs = {v.name for v in graph.input if said["io"] == "inside" or v.name in states}
        given = inputs & self.types.keys() - self.constants
        # The body of an If, Loop or Scan has no views of what it reads from around it: it copies that.
        self.copied = captured(graph) - {*said.get("operands", ())} - self.constants
        self.pieces: dict[str, Pieces] = {name: [(name, 0, self.types[name][3])] for name in given}
        self.pairs: list[tuple[str, str]] = list(states.items())
        self.loose: set[str] = set()
        self.given_names = given
        rows = [self.row(node) for node in self.nodes]
        self.kept_names = self.outputs - self.outside | (set() if said["overwrite_inputs"] else given - states.keys())
        self.number(rows, states, said["alignment"])
        makers = {name: at for at, node in enumerate(self.nodes) for name in node.output}
        self.waits = [{makers[name] for name in reads(node) if name in makers} for node in self.nodes]
        # Readers keep the values of Constant nodes as initializers.
        self.idle = {
            name_of(node) for node in self.nodes if node.op_type == "Constant" and not {*node.output} & self.outputs
        }

    def mark(self, node: onnx.NodeProto) -> Mapping[str, str]:
        """Return the metadata of the function that a node calls."""
        return self.marks.get((node.domain, node.op_type), {})

    def moves(self, node: onnx.NodeProto) -> str:
        """Return how a node moves bytes: "view", "join" or "cut", "moved" if that is not known, "" if it computes or copies."""
        mark, types = self.mark(node), self.types
        made, of = node.output[0], joined(node)
        is_view, is_join = VIEW in mark, node.op_type in {*table.JOINS, "QLinearConcat"}
        if not (is_view or is_join or node.op_type in table.SAME_ELEMENTS | table.TAKES_PARTS):
            return ""
        if not is_join and of[0] in self.copied:
            return ""
        if not {made, of[0]} <= types.keys() or any(a.ref_attr_name for a in node.attribute):
            return "moved"
        if is_view or node.op_type in table.SAME_ELEMENTS:
            return "view" if types[of[0]][2:] == types[made][2:] else "moved" if is_view else ""
        whole, parts = types[made if is_join else of[0]][0], [*(of if is_join else node.output)]
        if is_join and len(of) == 1:
            return "view"
        known = [types[v][0] for v in parts if v in types]
        if any(math.prod(part) and not table.is_contiguous(whole, part) for part in known):
            return ""
        if node.op_type == "Slice" and known == [whole]:
            return "view"
        return "cut" if not is_join else "join" if len(known) == len(parts) else "moved"

    def start(self, node: onnx.NodeProto, name: str) -> int | None:
        """Return the first byte of a result of a Split or Slice in the operand; None where it is not known."""
        outer, width = self.types[node.input[0]][:2]
        if node.op_type == "Split":
            before = node.output[: list(node.output).index(name)]
            return sum(self.types[v][3] for v in before) if {*before} <= self.types.keys() else None
        told: dict[str, list[int] | None] = {a.name: list(a.ints) for a in node.attribute}
        operands = zip(("starts", "ends", "axes", "steps"), node.input[1:], strict=False)
        told |= {key: self.numbers.get(v) for key, v in operands if v}
        starts = told.get("starts")
        axes = told.get("axes", [*range(len(starts or ()))])
        corner = table.slice_corner(outer, starts, axes, told.get("steps", []))
        return None if corner is None else int(width * table.elements_before(outer, corner))

    def part(self, node: onnx.NodeProto, name: str) -> Pieces:
        """Return the pieces of the operand of a Split or Slice that are those of a result; none where they are not known."""
        pieces, start = self.pieces.get(node.input[0], []), self.start(node, name) if name in self.types else None
        if start is None or sum(end - begin for _, begin, end in pieces) != self.types[node.input[0]][3]:
            return []
        found, stop = [], start + self.types[name][3]
        for origin, begin, end in pieces:
            low, high = begin + max(start, 0), begin + min(stop, end - begin)
            found += [(origin, low, high)] if low < high else []
            start, stop = start - (end - begin), stop - (end - begin)
        return found

    def content(self, node: onnx.NodeProto, kind: str, name: str) -> Pieces:
        """Return the pieces of a result. In that of a Concat, the bytes of operands outside of the arena are its own."""
        if kind in {"view", "moved"}:
            return self.pieces.get(node.input[0], []) if kind == "view" else []
        if kind != "join":
            return self.part(node, name) if kind == "cut" else [(name, 0, self.types[name][3])]
        found = Pieces()
        for x, end in zip(of := joined(node), accumulate(self.types[x][3] for x in of), strict=True):
            found += self.pieces.get(x, [(name, end - self.types[x][3], end)])
        return found

    def row(self, node: onnx.NodeProto) -> tuple[list[str], Pieces, list[tuple[str, str]], bool]:
        """Return the results of a node, the pieces that it reads, those written over operands, and whether one may be over a state."""
        kind, mark, names = self.moves(node), self.marks.get((node.domain, node.op_type)), reads(node)
        made = [v for v in node.output if v in self.types and v not in self.outside]
        if node.op_type == "Constant" or (names and names <= self.constants):
            self.constants |= {*node.output}
            made = [v for v in made if v in self.outputs]
        first, held = node.input[0] if node.input else "", self.pieces
        parts = [self.part(node, v) for v in node.output] if kind == "cut" else []
        # A view of bytes that lie outside lies there, too, unless it is an output, which is a copy of them.
        is_outside = kind in {"view", "cut"} and first not in held
        for name in made if not is_outside else [v for v in made if v in self.outputs]:
            held[name] = self.content(node, "" if is_outside else kind, name)
        places = (
            table.operands_over(node.op_type, len(node.input)) if mark is None else json.loads(mark.get(IN_PLACE, "[]"))
        )
        may = [] if kind else [node.input[at] for at in places]
        alike = [(v, x) for v in made for x in may if x in held and self.types[x][:2] == self.types[v][:2]]
        whole = joined(node) if kind == "join" else [first] if kind else []
        self.pairs += [*alike, *((v, x) for v in made for x in whole if x in held)]
        self.loose |= {*node.output, first} if kind and kind != "view" else set()
        names = names - {first} if kind == "cut" else set() if kind == "moved" else names
        read = chain(*parts, *(held.get(x, []) for x in names))
        return made, [*read], alike, table.appends(node.op_type)

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
        before = {self.origin(made): self.origin(given) for given, made in states.items()}
        self.rows = []
        for made, read, alike, is_over in rows:
            ahead = [(v, p) for v in made for p in read if is_over and p[0] == before.get(self.origin(v))]
            over = [(v, piece) for v, x in alike for piece in self.pieces[x]] + ahead
            spare = {name: self.of(self.pieces[name]) for name in dict(over)}
            touched = self.of(read).union(*(self.of(self.pieces.get(v, [])) for v in made))
            spares = sum(self.size[name] for names in spare.values() for name in names)
            self.rows.append((touched, spares, self.of(piece for _, piece in over)))
        used = set().union(*(touched for touched, _, _ in self.rows))
        self.kept = self.of(piece for v in self.kept_names for piece in self.pieces.get(v, []))
        self.given = self.of(piece for v in self.given_names for piece in self.pieces[v]) & (used | self.kept)

    def origin(self, name: str) -> str:
        """Return the tensor whose bytes a tensor has first."""
        return next((origin for origin, _, _ in self.pieces.get(name, [])), name)

    def of(self, pieces: Iterable[tuple[str, int, int]]) -> set[str]:
        """Return the names of the bytes in pieces."""
        found = ((*self.units[origin], begin, end) for origin, begin, end in pieces)
        return {n for at, names, begin, end in found for n in names[bisect_left(at, begin) : bisect_left(at, end)]}


# The certificate, compared with the graph.


def graph_of(model: onnx.ModelProto, said: Mapping[str, Any]) -> ByteGraph:
    """Return the problem of a model with the dimensions and the types that the certificate says."""
    named = [
        dim for value in model.graph.input for dim in value.type.tensor_type.shape.dim if dim.dim_param in said["dims"]
    ]
    bound = {dim.dim_param: said["dims"][dim.dim_param] for dim in named}
    for dim in named:
        dim.dim_value = bound[dim.dim_param]
    model = onnx.shape_inference.infer_shapes(model, data_prop=True)
    problem = ByteGraph(model, model.graph, said)
    problem.dims = bound
    return problem


def body_of(problem: ByteGraph, said: Mapping[str, Any], body: Mapping[str, Any]) -> ByteGraph:
    """Return the graph of a body, whose inputs and outputs lie in its workspace. Raises ValueError where a node has no such body."""
    node = next((node for node in problem.nodes if name_of(node) == body["node"]), None)
    if node is None or {*node.output} <= problem.constants:
        raise ValueError(f"no step of the plan makes {body['node']}")
    terms = {**body, "alignment": said["alignment"], "io": "inside", "overwrite_inputs": False, "states": []}
    opsets = {one.domain: one.version for one in problem.model.opset_import}
    for function in [f for f in problem.model.functions if (f.domain, f.name) == (node.domain, node.op_type)]:
        own = {v for inner in function.node for v in inner.output}
        differs = any(opsets.get(one.domain, one.version) != one.version for one in function.opset_import)
        if differs or not {*function.output} <= own or META_OP in problem.marks[node.domain, node.op_type]:
            raise ValueError(f"{body['node']} runs as one kernel")
        known = [v for v, x in zip(function.input, node.input, strict=False) if x in problem.constants]
        called = typed(problem, function, dict(zip(function.input, node.input, strict=False)))
        return ByteGraph(problem.model, called, terms | {"operands": function.input}, known)
    is_old = node.op_type == "Scan" and max(opsets.get(domain, 1) for domain in table.STANDARD) < 9
    if is_old or node.domain not in table.STANDARD or node.op_type not in table.WITH_BODIES:
        raise ValueError(f"{body['node']} runs as one kernel")
    (graph,) = [a.g for a in node.attribute if a.name == body["attribute"] and a.HasField("g")]
    scanned = next((a.i for a in node.attribute if a.name == "num_scan_inputs"), 0)
    first = {"Loop": 2, "Scan": 0}.get(node.op_type, len(graph.input))
    carried = zip(graph.input[first : len(graph.input) - scanned], graph.output[first // 2 :], strict=False)
    terms["states"] = [(given.name, made.name) for given, made in carried]
    return ByteGraph(problem.model, graph, terms, problem.constants)


def typed(problem: ByteGraph, function: onnx.FunctionProto, operands: Mapping[str, str]) -> onnx.GraphProto:
    """Return the nodes of a called function as a graph without inputs, with the types that onnx infers from those of the operands."""
    make, ends = onnx.helper.make_tensor_value_info, [onnx.ValueInfoProto(name=v) for v in function.output]
    given = [make(v, problem.types[x][2], problem.types[x][0]) for v, x in operands.items() if x in problem.types]
    graph = onnx.GraphProto(name="called", node=function.node, input=given, output=ends)
    model = onnx.ModelProto(ir_version=problem.model.ir_version, graph=graph, opset_import=problem.model.opset_import)
    model.functions.extend(problem.model.functions)
    inferred = onnx.shape_inference.infer_shapes(model, data_prop=True).graph
    del inferred.input[:]
    return inferred


def account_of(problem: ByteGraph, said: Mapping[str, Any]) -> dict[str, Any]:
    """Return who uses which bytes in the order of a certificate, after a node for the caller before the run, and before one after it.

    In every order a node waits for those that it reads; in the scope "this order" it waits for the one before it.
    """
    require_order(problem, said)
    place = {name: at for at, name in enumerate(said["order"], start=1)}
    rows = {name_of(node): (*problem.rows[at], problem.waits[at]) for at, node in enumerate(problem.nodes)}
    nothing = {"over": [], "spares": 0, "workspace": 0}
    nodes = [{"name": "", "waits": [], "uses": sorted(problem.given), **nothing}]
    for name in said["order"]:
        uses, spares, over, waits = rows[name]
        before = {name_of(problem.nodes[other]) for other in waits} - problem.idle
        row = {"name": name, "waits": sorted({0, *map(place.__getitem__, before)}), "uses": sorted(uses)}
        inside = max((body["arena"] for body in said["bodies"] if body["node"] == name), default=0)
        row |= {"over": sorted(over), "spares": spares, "workspace": said["workspaces"].get(name, 0) + inside}
        nodes.append(row)
    nodes.append({"name": "", "waits": list(range(len(nodes))), "uses": sorted(problem.kept), **nothing})
    if said["scope"] != "any order":
        nodes = [node | {"waits": [at - 1] if at else []} for at, node in enumerate(nodes)]
    return {"bytes": problem.size, "nodes": nodes}


def require_order(problem: ByteGraph, said: Mapping[str, Any]) -> None:
    """Raise ValueError unless the nodes can run in the order of the certificate, which for its scope is that of a planned model."""
    order, names, steps = said["order"], [name_of(node) for node in problem.nodes], steps_of(problem)
    place = {name: step for step, name in enumerate(order)}
    if sorted(order) != sorted({*names} - problem.idle):
        raise ValueError("the order does not have each node once")
    pairs = [(names[at], names[other]) for at, others in enumerate(problem.waits) for other in others]
    if any(place[other] > place[name] for name, other in pairs if {name, other} <= place.keys()):
        raise ValueError("a node of the order runs before one that it reads")
    if said["scope"] != "any order" and steps and sorted(order, key=steps.__getitem__) != order:
        raise ValueError("the order is not that of the plan in the model")


def steps_of(problem: ByteGraph) -> dict[str, int]:
    """Return the step of each node in a planned model; nothing for another."""
    return {name_of(node): int(p.value) for node in problem.nodes for p in node.metadata_props if p.key == STEP}


def require_steps(problem: ByteGraph, said: Mapping[str, Any]) -> None:
    """Raise ValueError unless the steps of the certificate are those of a planned model, or, of another model, of one node each."""
    told, steps = said["steps"], steps_of(problem)
    if steps and told != [steps[name] for name in said["order"]]:
        raise ValueError("the steps are not those of the plan in the model")
    if not steps and any(step >= later for step, later in pairwise([-1, *told, len(problem.nodes)])):
        raise ValueError("the steps do not follow each other, and the model says none")


def lives_of(problem: ByteGraph, said: Mapping[str, Any]) -> dict[str, range]:
    """Return the steps in which each tensor lives, in the order of the certificate."""
    step = dict(zip(said["order"], said["steps"], strict=True))
    touched: dict[str, list[int]] = {name: [0] for name in problem.given_names}
    for node in problem.nodes:
        for name in {*reads(node), *node.output} if name_of(node) in step else ():
            touched.setdefault(name, []).append(step[name_of(node)])
    for name in problem.kept_names:
        touched.setdefault(name, []).append(max(step.values()))
    return {name: range(min(steps), max(steps) + 1) for name, steps in touched.items()}


def held_steps(
    problem: ByteGraph, said: Mapping[str, Any], row: Mapping[str, Any], lives: Mapping[str, range]
) -> list[int]:
    """Return the steps of a row in which tensors hold all of its bytes."""
    ends: dict[int, int] = {}
    own = [(start, name) for name, (owner, start) in said["places"].items() if owner == row["owner"]]
    for start, name in sorted(own):
        for step in lives.get(name, ()) if name in problem.types else ():
            end = ends.get(step, row["start"])
            ends[step] = max(end, start + problem.types[name][3]) if start <= end else end
    is_full = [ends.get(step, -1) >= row["start"] + row["size"] for step in range(row["first"], row["last"] + 1)]
    return [row["first"] + at for at, full in enumerate(is_full) if full or row["workspace"]]


def unheld(problem: ByteGraph, said: Mapping[str, Any]) -> str:
    """Return the first row whose bytes no tensors hold in one of its steps; "" where all are held."""
    require_order(problem, said)
    require_steps(problem, said)
    lives, end = lives_of(problem, said), max(said["steps"])
    outside = (n for n, row in said["rows"].items() if not 0 <= row["first"] <= row["last"] <= end)
    steps = ((n, row, len(held_steps(problem, said, row, lives))) for n, row in said["rows"].items())
    return next(chain(outside, (n for n, row, held in steps if held <= row["last"] - row["first"])), "")


def refusal_of_bodies(problem: ByteGraph, said: Mapping[str, Any]) -> str:
    """Return the reason why the bytes of a body are not those of the model; "" where all are."""
    for body in said["bodies"]:
        inside = body_of(problem, said, body)
        if body["alignment"] != said["alignment"] or body["scope"] != "any order" or "account" not in body:
            return f"the body of {body['node']} has no proof of its bytes in every order"
        if reason := refusal(inside, body):
            return f"the body of {body['node']}: {reason}"
        problem.unsure, problem.spaces = problem.unsure + inside.unsure, problem.spaces + inside.spaces
    return ""


def refusal(problem: ByteGraph, said: Mapping[str, Any]) -> str:
    """Return the reason why the account of a certificate is not that of the model; "" where it is."""
    if said["claim"] == "any order" != said["scope"]:
        return f"a proof for {said['scope']} is none for any order"
    if reason := refusal_of_bodies(problem, said):
        return reason
    if "account" in said:
        account = account_of(problem, said)
        differing = next((key for key in account if account[key] != said["account"].get(key)), None)
        return f"the {differing} in the certificate are not those of the model" if differing else ""
    tree, unit = said["proof"]["tree"], said["alignment"]
    pinned = ["pin" in said["rows"][name] for name in tree.get("chain", ())]
    if said["scope"] == "any order" and ([*tree], pinned) != (["chain"], [True]):
        return "only one pinned row takes its bytes in any order"
    whole = said["scope"] == UNITS
    if reason := shared(said["rows"], unit, whole=whole):
        return reason
    for name, row in said["rows"].items():
        # An owner lies at a multiple of the alignment. Rows that live at once cannot both hold the same such address.
        first, end = -(-(row["start"] - whole * (unit - 1)) // unit), -(-(row["start"] + row["size"]) // unit)
        if row["bytes"] > (end - first) * unit:
            return f"the row {name} holds {(end - first) * unit} bytes, not {row['bytes']}"
        if "pin" in row and row["pin"] != said["pins"].get(row["owner"], -unit) + first * unit:
            return f"the row {name} is not pinned to {row['pin']}"
    name = unheld(problem, said)
    return f"not all bytes live that the certificate counts: {name}" if name else ""


def shared(rows: Mapping[str, Any], unit: int, *, whole: bool = False) -> str:
    """Return the reason why rows count bytes twice, or in no step; "" where each counts bytes of its own, with `whole` in units."""
    by_owner: dict[str, list[str]] = {}
    for name, row in rows.items():
        numbers = [row[key] for key in ("start", "size", "bytes", "first", "last")]
        if any(type(number) is not int for number in numbers) or row["first"] > row["last"] or row["start"] < 0:
            return f"the row {name} has no steps or no bytes"
        for other in by_owner.setdefault(row["owner"], []):
            low, high = sorted((row, rows[other]), key=lambda one: int(one["start"]))
            together = max(low["first"], high["first"]) <= min(low["last"], high["last"])
            start = high["start"] - whole * (unit - 1)
            if together and -(-(low["start"] + low["size"]) // unit) > -(-start // unit):
                return f"the rows {name} and {other} hold the same bytes"
        by_owner[row["owner"]].append(name)
    return ""


def assumed(said: Mapping[str, Any], problem: ByteGraph) -> str:
    """Return what the certificate says and the model does not, as words."""
    options = {key: said[key] for key in ("alignment", "io", "overwrite_inputs")}
    words = [f"{key} {value}" for key, value in (options | problem.dims).items()]
    words += [f"state {given} to {made}" for given, made in said.get("states", [])]
    words += [f"{name} at {offset}" for name, offset in said["pins"].items()] if "account" not in said else []
    spaces = problem.spaces if "account" in said else sum(bool(row["workspace"]) for row in said["rows"].values())
    counts = (problem.unsure, "shapes"), (spaces, "workspaces")
    return ", ".join([*words, *(f"{count} {kind}" for count, kind in counts if count)])


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
    except WRONG as error:
        sys.exit(f"refused: {ascii(str(error))[1:-1][:300]}")
