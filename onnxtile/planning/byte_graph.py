"""Which bytes each node of a graph touches, worked out without onnxtile. It needs onnx; `check_account.py` beside it imports it.

A node needs the bytes of its operands and results while it runs. A view holds the bytes of its operand, and contiguous parts of a Concat
or Split lie in the whole; a contiguous Slice counts nothing. A result may be written over an operand of its size that no later node reads,
but for the operators in COPIES. Any other tensor has bytes of its own, aligned.
"""

from __future__ import annotations

import json
import math
import re
from bisect import bisect_left
from collections.abc import Iterable, Mapping
from itertools import accumulate, chain, pairwise
from typing import Any

import onnx

VIEW, IN_PLACE = (f"pkg.onnxtile.{mark}" for mark in ("view", "in_place"))
VIEWS = {"Cast", "CastLike", "Dropout", "Flatten", "Identity", "Reshape", "Squeeze", "Unsqueeze"}
COPIES = re.compile(
    "(?<!Fused)Conv|MatMul|QGemm|Pool|Attention$|Transpose|Concat|Split|Slice|Gather|Resize|Upsample|LRN|Reduce|Expand|Tile|Pad|Einsum|RNN|"
    "LSTM|GRU|ToSpace|ToDepth|ArgM|TopK|Hardmax|CumSum|CumProd|Rotary|Embed|Col2Im|Unique|^If$|^Loop$|^Scan$|DFT|NonMax|Roi|Grid|Normalizer|"
    "FastGelu|QuickGelu"
)
ADDED = {"Gemm": 2, "FusedGemm": 2, "FusedConv": 3}
"""The first operand that a product adds to each element of its sums: those before may not be written over."""
WIDTH = {t: onnx.helper.tensor_dtype_to_np_dtype(t).itemsize for t in range(1, 17) if t != onnx.TensorProto.STRING}
OVER_STATES = re.compile("Concat|Attention|GRU|LSTM|RNN|^If$|^Loop$|^Scan$")
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
        made, of, is_join = node.output[0], joined(node), "Concat" in node.op_type
        is_view = VIEW in mark
        if not is_view and node.op_type not in {*VIEWS, "Concat", "QLinearConcat", "Split", "Slice"}:
            return ""
        if not is_join and of[0] in self.copied:
            return ""
        if not {made, of[0]} <= types.keys() or any(a.ref_attr_name for a in node.attribute):
            return "moved"
        if is_view or node.op_type in VIEWS:
            return "view" if types[of[0]][2:] == types[made][2:] else "moved" if is_view else ""
        outer, inner, others = types[of[0]][0], types[made][0], of if is_join else node.output
        if (node.op_type == "Slice" and outer == inner) or (node.op_type == "Concat" and len(of) == 1):
            return "view"
        if node.op_type == "Slice":
            axis = next((at for at, length in enumerate(inner) if length != 1), len(inner))
            return "cut" if outer[axis + 1 :] == inner[axis + 1 :] else ""
        axis = int(next((a.i for a in node.attribute if a.name == "axis"), is_join)) % max(len(outer), 1)
        if math.prod(outer[:axis]) != 1 and len(others) > 1:
            return ""
        return "cut" if not is_join else "join" if {*others} <= types.keys() else "moved"

    def start(self, node: onnx.NodeProto, name: str) -> int | None:
        """Return the first byte of a result of a Split or Slice in the operand; None where it is not known."""
        outer, width = self.types[node.input[0]][:2]
        if node.op_type == "Split":
            before = node.output[: list(node.output).index(name)]
            return sum(self.types[v][3] for v in before) if {*before} <= self.types.keys() else None
        told: dict[str, list[int] | None] = {a.name: list(a.ints) for a in node.attribute}
        operands = zip(("starts", "ends", "axes", "steps"), node.input[1:], strict=False)
        told |= {key: self.numbers.get(v) for key, v in operands if v}
        starts, steps = told.get("starts"), told.get("steps", [])
        axes = told.get("axes", [*range(len(starts or ()))])
        if starts is None or axes is None or steps is None or {*steps} - {1}:
            return None
        below = [(at + outer[axis] if at < 0 else at, axis % len(outer)) for at, axis in zip(starts, axes, strict=True)]
        return int(width * sum(min(max(at, 0), outer[axis]) * math.prod(outer[axis + 1 :]) for at, axis in below))

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
        may = list(node.input) if mark is None else [node.input[at] for at in json.loads(mark.get(IN_PLACE, "[]"))]
        is_copy = kind or (mark is None and COPIES.search(node.op_type))
        may = [] if is_copy else may[ADDED.get(node.op_type, 0) if mark is None else 0 :]
        alike = [(v, x) for v in made for x in may if x in held and self.types[x][:2] == self.types[v][:2]]
        whole = joined(node) if kind == "join" else [first] if kind else []
        self.pairs += [*alike, *((v, x) for v in made for x in whole if x in held)]
        self.loose |= {*node.output, first} if kind and kind != "view" else set()
        names = names - {first} if kind == "cut" else set() if kind == "moved" else names
        read = chain(*parts, *(held.get(x, []) for x in names))
        return made, [*read], alike, bool(OVER_STATES.search(node.op_type))

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
