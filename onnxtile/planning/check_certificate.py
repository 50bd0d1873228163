"""Check a certificate of `onnxtile plan`: `python check_certificate.py MODEL.onnx CERTIFICATE.json`. It needs onnx, and no onnxtile.

The claim: no plan takes fewer bytes. A node needs the bytes of its operands and results while it runs. A view holds the bytes of its
operand, and contiguous parts of a Concat or Split lie in the whole; a contiguous Slice counts nothing. A result may be written over an
operand of its size that no later node reads, but for the operators in COPIES. Any other tensor has bytes of its own, aligned.
"""

from __future__ import annotations

import json
import math
import re
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import onnx

VIEW, IN_PLACE = "pkg.onnxtile.view", "pkg.onnxtile.in_place"
VIEWS = {"Cast", "CastLike", "Dropout", "Flatten", "Identity", "Reshape", "Squeeze", "Unsqueeze"}
COPIES = re.compile(
    "Conv|MatMul|QGemm|Pool|Attention|Transpose|Concat|Split|Slice|Gather|Resize|Upsample|LRN|Reduce|Expand|Tile|Pad|Einsum|RNN|LSTM|GRU|"
    "ToSpace|ToDepth|ArgM|TopK|Hardmax|CumSum|Rotary|Embed|Col2Im|Unique|^If$|^Loop$|^Scan$|DFT|Quantize|NonMax|Roi|Grid"
)
_CLAIMS = {"any order": "any order", "order": "the order in the certificate"}
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
        given = {v.name for v in graph.input if is_inside and v.name in self.types} - self.constants
        self.held = {name: self.parts.get(name, {name}) for name in given}
        self.pairs: list[tuple[str, str]] = []
        self.loose: set[str] = set()
        rows = [self.row(node, kind) for node, kind in zip(self.nodes, kinds, strict=True)]
        self.number(
            rows, given, self.outputs - self.outside | (set() if said["overwrite_inputs"] else given), said["alignment"]
        )
        makers = {name: at for at, node in enumerate(self.nodes) for name in node.output}
        after = [{makers[name] for name in reads(node) if name in makers} for node in self.nodes]
        behind: list[set[int]] = [set() for _ in after]
        for at, before in enumerate(after):
            for other in before:
                behind[other].add(at)
        self.waits = after, behind

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

    def number(self, rows: list[Any], given: Iterable[str], kept: Iterable[str], unit: int) -> None:
        """Number the tensors with bytes of their own. A part of another may lie at any address, and so may all in its bytes."""
        count = -1
        while count < len(self.loose):
            count = len(self.loose)
            self.loose |= {name for pair in self.pairs if not self.loose.isdisjoint(pair) for name in pair}
        size = {
            v: self.types[v][3] if v in self.loose else -(-self.types[v][3] // unit) * unit
            for v in set().union(*self.held.values())
        }
        at = {name: number for number, name in enumerate(sorted(size))}
        self.names, self.size, self.users = sorted(size), [size[name] for name in sorted(size)], [0] * len(size)
        self.touched = [{at[name] for name in touched} for touched, _, _ in rows]
        self.over = [
            (sum(size[u] for v in made for u in self.held[v]), {at[u] for u in units}) for _, made, units in rows
        ]
        for node, touched in enumerate(self.touched):
            for u in touched:
                self.users[u] |= 1 << node
        for u in {at[name] for v in kept for name in self.held.get(v, ())}:
            self.users[u] |= 2 << len(rows)
        for u in {at[name] for v in given for name in self.held[v]}:
            self.users[u] |= (self.users[u] > 0) << len(rows)

    def live(self, node: int, before: int, behind: int) -> tuple[dict[str, int], int]:
        """Return the live bytes by tensor while a node runs between other nodes, and their sum without those written over."""
        live = {u for u, users in enumerate(self.users) if users & before and users & behind} | self.touched[node]
        free = sum(self.size[u] for u in self.over[node][1] if not self.users[u] & behind)
        return {self.names[u]: self.size[u] for u in live}, sum(self.size[u] for u in live) - min(
            free, self.over[node][0]
        )

    def span(self, node: int, *, backward: bool = False) -> int:
        """Return the nodes that run before a node in every order, or after it, with the caller, as bits."""
        found, todo = 1 << len(self.nodes) + backward, [node]
        while todo:
            new = [k for k in self.waits[backward][todo.pop()] if not found >> k & 1]
            found |= sum(1 << k for k in new)
            todo += new
        return found

    def blocked(self, limit: int, sets: int, *, backward: bool) -> int | None:
        """Return the least bytes above `limit` that a node needs in each order: None where an order stays within it, 0 for too many sets.

        All sets of nodes that run one by one within the limit are tried. A node that leaves no more live bytes than before runs at once:
        live bytes are a submodular function of the nodes that have run, so no later node needs more than it would without it.
        """
        first, waits = 1 << len(self.nodes) + backward, [sum(1 << k for k in ks) for ks in self.waits[backward]]
        todo = [(first, sum(size for size, users in zip(self.size, self.users, strict=True) if users & first))]
        seen, over = {first}, []
        while todo and len(seen) <= sets:
            done, live = todo.pop()
            ways = []
            for node in (k for k, wait in enumerate(waits) if not done >> k & 1 and not wait & ~done):
                needed, left = self.step(node, done, live, backward=backward)
                over += [needed] * (needed > limit)
                ways += [(left, done | 1 << node)] * (needed <= limit)
            for left, further in [min(ways)] if ways and min(ways)[0] <= live else ways:
                if further.bit_count() > len(waits):
                    return None
                todo += [(further, left)] * (further not in seen)
                seen.add(further)
        return 0 if todo else min(over)

    def step(self, node: int, done: int, live: int, *, backward: bool) -> tuple[int, int]:
        """Return the live bytes while a node runs after the nodes `done`, and after it."""
        new = [u for u in self.touched[node] if not self.users[u] & done]
        last = [u for u in self.touched[node] if not self.users[u] & ~(done | 1 << node)]
        free = sum(self.size[u] for u in self.over[node][1].intersection(new if backward else last))
        during = live + sum(self.size[u] for u in new)
        return during - min(free, self.over[node][0]), during - sum(self.size[u] for u in last)


def graph_of(model: onnx.ModelProto, said: Mapping[str, Any]) -> ByteGraph:
    """Return the problem of a model with the dimensions and the types that the certificate says."""
    for dim in (d for value in model.graph.input for d in value.type.tensor_type.shape.dim):
        if dim.dim_param in said["dims"]:
            dim.dim_value = said["dims"][dim.dim_param]
    return ByteGraph(onnx.shape_inference.infer_shapes(model, data_prop=True), said)


def require_order(problem: ByteGraph, order: list[int]) -> None:
    """Raise ValueError unless the nodes can run in this order."""
    place = {number: step for step, number in enumerate(order)}
    if sorted(order) != list(range(len(problem.nodes))):
        raise ValueError("the order does not have each node once")
    if any(place[other] > place[number] for number, before in enumerate(problem.waits[0]) for other in before):
        raise ValueError("a node of the order runs before one that it reads")


def around(node: int, before: int, count: int) -> tuple[int, int]:
    """Return the nodes `before` a node of an order of `count` nodes, and all behind it, each with the caller."""
    return before | 1 << count, ((1 << count) - 1) & ~(before | 1 << node) | 2 << count


def verdict(problem: ByteGraph, said: Mapping[str, Any]) -> str:
    """Return the reason why the certificate is not accepted; "" where it is."""
    proof, limit = said["proof"], said["arena"] - said["alignment"]
    place = {name: at for at, node in enumerate(problem.nodes) for name in node.output if name}
    if proof["kind"] == "search":
        bound = problem.blocked(limit, proof["sets"], backward=proof["backward"]) or 0
        return "" if bound >= proof["bound"] > limit else f"the search proves {bound} bytes, not {proof['bound']}"
    node = place[proof["node"]]
    if proof["kind"] == "step" and said["claim"] == "order":
        order = [place[name] for name in said["order"]]
        require_order(problem, order)
        before, behind = around(node, sum(1 << k for k in order[: order.index(node)]), len(order))
    else:
        before, behind = problem.span(node), problem.span(node, backward=True)
    live, needed = problem.live(node, before, behind)
    if live != proof["live"] or needed != proof["bound"]:
        return f"{needed} bytes are live while {proof['node']} runs, not {proof['bound']}, or in other tensors"
    return "" if needed > limit else f"{needed} bytes are not more than {limit}"


def main(model: str, certificate: str) -> str:
    """Return a line that says whether the certificate is accepted. Raises ValueError with the reason where it is not."""
    said = json.loads(Path(certificate).read_text(encoding="utf-8"))
    if said["proof"] is None:
        raise ValueError(said["reason"])
    problem = graph_of(onnx.load(model, load_external_data=False), said)
    reason = verdict(problem, said)
    if reason:
        raise ValueError(reason)
    sizes = f"; the shapes of {problem.unsure} tensors are those of the certificate" if problem.unsure else ""
    return f"accepted: no plan of {_CLAIMS[said['claim']]} takes fewer than {said['arena']} bytes, by {said['proof']['kind']}{sizes}"


if __name__ == "__main__":
    try:
        sys.stdout.write(f"{main(*sys.argv[1:])}\n")
    except (ValueError, KeyError, TypeError, IndexError, AttributeError) as error:
        sys.exit(f"refused: {error}")
