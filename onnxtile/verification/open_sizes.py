"""Sizes for open dimensions: a few are tried until the model runs."""

from __future__ import annotations

import hashlib
import json
from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx_ir as ir

from onnxtile.model import keys
from onnxtile.model.binding import bind, free_inputs
from onnxtile.model.constants import Constants
from onnxtile.model.npz_inputs import Feeds, given_shapes
from onnxtile.model.submodel import exposing
from onnxtile.model.topology import dependencies, node_ids
from onnxtile.system.process import Progress, counted, silent
from onnxtile.verification.values import OutputError, compare_values

# Sizes that attention with a cache of keys asks of open dimensions: the batch, the head size, the window, and the number of all tokens.

_ATTENTION = ("com.microsoft", "GroupQueryAttention")
_PAST, _LENGTHS = 3, 5
"""The places of the past keys (batch, heads, tokens, head size) and of the lengths of the keys."""


@dataclass
class CacheSizes:
    """Sizes by symbol: `fixed` ones, and `sums` of others. `window` is the capacity of the largest cache that slides."""

    fixed: dict[str, int] = field(default_factory=dict)
    sums: dict[str, tuple[str | int, ...]] = field(default_factory=dict)
    window: int = 0

    def apply(self, dims: Mapping[str, int]) -> dict[str, int]:
        """Return `dims` with the sizes that are known here."""
        known = {name: self.fixed.get(name, size) for name, size in dims.items()}
        totals = {name: self._sum(parts, known) for name, parts in self.sums.items() if name in known}
        return known | {name: total for name, total in totals.items() if total is not None}

    def _sum(self, parts: tuple[str | int, ...], known: Mapping[str, int]) -> int | None:
        sizes = [part if isinstance(part, int) else known.get(part) for part in parts]
        return None if None in sizes else sum(size for size in sizes if size is not None)


def cache_sizes(model: ir.Model) -> CacheSizes:
    """Return the sizes that the nodes of `model` that attend to past keys ask for."""
    found = CacheSizes()
    for node in model.graph.all_nodes():
        past = node.inputs[_PAST] if len(node.inputs) > _LENGTHS else None
        if (node.domain, node.op_type) == _ATTENTION and past is not None and past.shape is not None:
            _note(node, [_named_dim(dim) for dim in past.shape], found)
    # A cache that slides is only written as far as there are tokens: elsewhere its bytes differ from run to run.
    for part in (part for parts in found.sums.values() for part in parts[1:] if found.window):
        found.fixed.setdefault(str(part), found.window)
    return found


def _note(node: ir.Node, past: list[str | int | None], found: CacheSizes) -> None:
    if len(past) != 4:
        return
    head, tokens = _head_size(node), past[2]
    if isinstance(past[0], str):
        found.fixed.setdefault(past[0], 1)  # the kernel takes several queries with a past in a batch of 1 only
    if head is not None and isinstance(past[3], str):
        found.fixed.setdefault(past[3], head)
    if node.attributes.get_int("sliding_window_cache", 0):
        found.window = max(found.window, node.attributes.get_int("local_window_size", 1))
        if isinstance(tokens, str):
            found.fixed.setdefault(tokens, found.window)
        return
    queries, mask = _dim(node.inputs[0], 1), _dim(_summed(node.inputs[_LENGTHS]), 1)
    if isinstance(mask, str) and queries is not None and tokens is not None:
        found.sums.setdefault(mask, (queries, tokens))


def _head_size(node: ir.Node) -> int | None:
    heads, shared = node.attributes.get_int("num_heads", 0), node.attributes.get_int("kv_num_heads", 0)
    is_packed = len(node.inputs) < 2 or node.inputs[1] is None
    width, count = _width(node.inputs[0]), heads + 2 * shared if is_packed else heads
    return width // count if width is not None and count > 0 else None


def _width(value: ir.Value | None) -> int | None:
    """Return the length of the last axis of `value`, also where only the weights of the product that makes it say so."""
    for _ in range(4):
        known = _dim(value, -1)
        maker = None if value is None else value.producer()
        if isinstance(known, int):
            return known
        if maker is None:
            return None
        if maker.op_type == "MatMulNBits":
            return maker.attributes.get_int("N", 0) or None
        constants = [one for one in maker.inputs if one is not None and one.const_value is not None]
        if maker.op_type in {"Add", "MatMul"} and constants:
            return int(constants[-1].const_value.shape[-1])  # type: ignore[union-attr, arg-type]
        value = maker.inputs[0]
    return None


def _summed(value: ir.Value | None) -> ir.Value | None:
    """Return the input of the model whose sum is `value`, less a number."""
    for maker in _makers(value):
        if maker.op_type == "ReduceSum":
            return maker.inputs[0]
    return None


def _makers(value: ir.Value | None) -> Iterator[ir.Node]:
    for _ in range(8):
        maker = None if value is None else value.producer()
        if maker is None:
            return
        yield maker
        value = maker.inputs[0] if maker.inputs else None


def _dim(value: ir.Value | None, axis: int) -> str | int | None:
    if value is None or value.shape is None or len(value.shape) < 2:
        return None
    return _named_dim(value.shape[axis])


def _named_dim(dim: int | ir.SymbolicDim) -> str | int | None:
    return dim if isinstance(dim, int) else dim.value


# Different ones first, so that exchanged axes are noticed.
_SIZES: tuple[tuple[int, ...], ...] = ((2, 8, 3, 5, 7), (8,), (16,), (32,), (64,), (128,), (224,), (1,), (256,), (512,))


@dataclass(frozen=True)
class Assignment:
    """Sizes of symbols, by name, and what shape each input has with them (None where even its rank is unknown)."""

    dims: Mapping[str, int] = field(default_factory=dict)
    shapes: Mapping[ir.Value, tuple[int, ...] | None] = field(default_factory=dict)

    def sizes(self, value: ir.Value) -> tuple[int, ...] | None:
        """Return the shape that an input was given, or what the file says of another value."""
        if value in self.shapes:
            return self.shapes[value]
        if value.const_value is not None:
            return tuple(value.const_value.shape.numpy())
        return value.shape.numpy() if value.shape is not None and value.shape.is_static() else None


def open_inputs(model: ir.Model) -> list[ir.Value]:
    """Return the inputs of `model` whose sizes are not all fixed."""
    return [value for value in free_inputs(model) if value.shape is None or not value.shape.is_static()]


def assignments(model: ir.Model) -> Iterator[Assignment]:
    """Yield sizes for the symbols of `model` that may work; a static model has one way only."""
    inputs = free_inputs(model)
    if not open_inputs(model):
        yield Assignment({}, {v: None if v.shape is None else v.shape.numpy() for v in inputs})
        return
    asked = cache_sizes(model)
    for sizes in _SIZES:
        dims: dict[str, int] = {}
        named: dict[ir.Value, list[int | str] | None] = {}
        for value in inputs:
            named[value] = _named(value)
            for dim in named[value] or ():
                if isinstance(dim, str):
                    dims.setdefault(dim, sizes[min(len(dims), len(sizes) - 1)])
        dims = asked.apply(dims)
        shapes = {
            value: None if one is None else tuple(dim if isinstance(dim, int) else dims[dim] for dim in one)
            for value, one in named.items()
        }
        yield Assignment(dims, shapes)


def _named(value: ir.Value) -> list[int | str] | None:
    if value.shape is None:
        return None
    return [dim if isinstance(dim, int) else _symbol(value, axis, dim) for axis, dim in enumerate(value.shape)]


def sizes_given(model: ir.Model, given: Feeds) -> dict[str, int]:
    """Return the size of each free dimension in `given`."""
    shapes = given_shapes(given)
    return {
        _symbol(value, axis, dim): shapes[value.name or ""][axis]
        for value in free_inputs(model)
        if value.name in shapes
        for axis, dim in enumerate(value.shape or ())
        if not isinstance(dim, int)
    }


def bound_form(model: ir.Model, dims: Mapping[str, int]) -> ir.Model:
    """Return `model`, or a copy of it whose inputs have the sizes that a trial ran with where some are open. It is only to be read."""
    return bound_copy(model, dims) if open_inputs(model) else model


def bound_copy(model: ir.Model, dims: Mapping[str, int]) -> ir.Model:
    """Return a copy of `model` whose inputs have the sizes that a trial ran with."""
    copy = model.clone()
    shapes = {}
    for value in free_inputs(copy):
        if value.shape is not None and not value.shape.is_static():
            named = [
                dim if isinstance(dim, int) else dims[_symbol(value, axis, dim)] for axis, dim in enumerate(value.shape)
            ]
            shapes[value.name or ""] = tuple(named)
    bind(copy, {}, shapes)
    return copy


def _symbol(value: ir.Value, axis: int, dim: ir.SymbolicDim) -> str:
    """Return the symbol's name; one without a name, or named "?", is its own."""
    return dim.value if dim.value and dim.value.isidentifier() else f"{value.name}[{axis}]"


# The first value that differs between two models, and the rewrite that made it.

# Pairs values of two models: by name, and where names changed, by operator and operands.


@dataclass(frozen=True)
class Pair:
    """A value of the first model, and the one that stands for it in the second."""

    first: ir.Value
    second: ir.Value

    @property
    def name(self) -> str:
        """The name in the second model."""
        return self.second.name or ""


def paired(first: ir.Model, second: ir.Model) -> list[Pair]:
    """Return the values of the main graphs that both models compute, in the order of the second; constants are none.

    Values of one name are a pair. Of the others those are that the same operator makes of pairs, from the inputs forward: of several such
    nodes first those with the same attributes and constants, then those that are left, in the order of the file.
    """
    return _Pairing(first, second).found()


@dataclass
class _Side:
    """One model: its constants, and the nodes of its main graph that compute something."""

    model: ir.Model
    constants: Constants = field(init=False)
    nodes: list[ir.Node] = field(init=False)

    def __post_init__(self) -> None:
        self.constants = Constants(self.model)
        self.nodes = [node for node in self.model.graph if not all(v in self.constants for v in node.outputs)]

    def made(self) -> dict[str, ir.Value]:
        """Return the outputs of the nodes, by name."""
        return {value.name: value for node in self.nodes for value in node.outputs if value.name}

    def free(self) -> dict[str, ir.Value]:
        return {value.name: value for value in self.model.graph.inputs if value.name and value not in self.constants}


class _Pairing:
    def __init__(self, first: ir.Model, second: ir.Model) -> None:
        self._first, self._second = _Side(first), _Side(second)
        self._partner: dict[ir.Value, ir.Value] = {}
        self._taken: set[ir.Value] = set()
        for mine, others in ((self._first.free(), self._second.free()), (self._first.made(), self._second.made())):
            for name in others:
                if name in mine:
                    self._join(mine[name], others[name])

    def found(self) -> list[Pair]:
        self._by_structure()
        values = (value for node in self._second.nodes for value in node.outputs)
        return [Pair(self._partner[value], value) for value in values if value in self._partner]

    def _join(self, first: ir.Value, second: ir.Value) -> None:
        self._partner[second] = first
        self._taken.add(first)

    def _by_structure(self) -> None:
        """Pair nodes in waves: a node is looked at once all that it reads is paired, and with it all that read the same."""
        candidates: defaultdict[Hashable, list[ir.Node]] = defaultdict(list)
        for node in self._first.nodes:
            if not any(value in self._taken for value in node.outputs):
                candidates[_structure(node, self._first, {})].append(node)
        waiting = {node: self._unpaired(node) for node in self._second.nodes}
        wave = [node for node, count in waiting.items() if count == 0]
        while wave:
            groups: defaultdict[Hashable, list[ir.Node]] = defaultdict(list)
            for node in wave:
                if not any(value in self._partner for value in node.outputs):
                    groups[_structure(node, self._second, self._partner)].append(node)
            new = [value for key, group in groups.items() for value in self._pair(candidates.pop(key, []), group)]
            wave = list(_ready(new, waiting))

    def _unpaired(self, node: ir.Node) -> int:
        read = dict.fromkeys(dependencies(node))
        return sum(value not in self._partner and value not in self._second.constants for value in read)

    def _pair(self, first: list[ir.Node], second: list[ir.Node]) -> Iterable[ir.Value]:
        """Pair nodes of one structure, and yield the values of the second model that have a partner now."""
        for one, other in self._matched(first, second):
            for mine, value in zip(one.outputs, other.outputs, strict=True):
                if value.name and mine.name:
                    self._join(mine, value)
                    yield value

    def _matched(self, first: list[ir.Node], second: list[ir.Node]) -> list[tuple[ir.Node, ir.Node]]:
        if len(first) == len(second) == 1:  # weights need not be read to tell these
            return [(first[0], second[0])]
        equal: defaultdict[Hashable, list[ir.Node]] = defaultdict(list)
        for node in reversed(first):
            equal[_content(node, self._first)].append(node)
        chosen: dict[ir.Node, ir.Node] = {}
        for node in second:
            same = equal[_content(node, self._second)]
            if same:
                chosen[node] = same.pop()
        used = set(chosen.values())
        left = [node for node in first if node not in used], [node for node in second if node not in chosen]
        return [*((one, other) for other, one in chosen.items()), *zip(*left, strict=False)]


def _ready(new: Sequence[ir.Value], waiting: dict[ir.Node, int]) -> Iterable[ir.Node]:
    """Yield the nodes that waited for nothing but the values in `new`."""
    for value in new:
        for reader in dict.fromkeys(value.consumers()):
            if waiting.get(reader, 0) > 0:
                waiting[reader] -= 1
                if waiting[reader] == 0:
                    yield reader


def _structure(node: ir.Node, side: _Side, partner: dict[ir.Value, ir.Value]) -> Hashable:
    """Return the operator of a node and what it reads: values of the first model, and of constants the element type and shape."""
    read = tuple(_token(value, side, partner) for value in node.inputs)
    return (node.domain, node.op_type, len(node.outputs), read)


def _token(value: ir.Value | None, side: _Side, partner: dict[ir.Value, ir.Value]) -> Hashable:
    if value is None:
        return None
    if value in side.constants:
        tensor = value.const_value
        return ("constant",) if tensor is None else (tensor.dtype, tuple(tensor.shape.numpy()))
    return partner.get(value, value)


def _content(node: ir.Node, side: _Side) -> Hashable:
    """Return the attributes and the constants of a node."""
    attributes = tuple(sorted((name, repr(attribute.value)) for name, attribute in node.attributes.items()))
    held = (value for value in node.inputs if value is not None and value in side.constants)
    return (attributes, tuple(hashlib.sha256(side.constants.array(value).tobytes()).digest() for value in held))


_AT_ONCE = 64
"""Values that are held at once."""


@dataclass(frozen=True)
class PairError:
    """How far one value of the second model is from the one of the first that it was paired with, which is called `original` there."""

    error: OutputError
    original: str

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON of one layer."""
        all_of_it = self.error.to_dict()
        kept = {key: all_of_it[key] for key in ("name", "max_abs", "max_rel", "tolerance", "equal")}
        return {**kept, "original": self.original}


@dataclass(frozen=True)
class Bisection:
    """The first value, in the order of the second model, that both models make and that differs; `agreeing` come before it.

    `node` makes it in the second model, `original` in the first; `rewrite` says what became of the original there. Where no value between
    inputs and outputs could be paired, all of these are None, since any node may be the first. `layers` are all pairs.
    """

    error: OutputError
    node: str | None
    op: str | None
    original: str | None
    original_op: str | None
    rewrite: str
    agreeing: int
    layers: tuple[PairError, ...] = field(default=(), repr=False)

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON of a bisection."""
        named = {"node": self.node, "op": self.op, "original": self.original, "original_op": self.original_op}
        layers = [layer.to_dict() for layer in self.layers]
        return {
            "value": self.error.to_dict(), **named,
            "rewrite": self.rewrite, "agreeing": self.agreeing, "layers": layers,
        }  # fmt: skip


def bisect(
    original: ir.Model, other: ir.Model, feeds: Mapping[str, Any], progress: Progress = silent
) -> Bisection | None:
    """Run both models on `feeds`, compare all values that can be paired, and return the first difference; None where these agree.

    Only values of the main graphs are looked at, a few at once. Raises ModelError.
    """
    pairs = paired(original, other)
    if not pairs:
        return None
    names = [pair.first.name or "" for pair in pairs], [pair.name for pair in pairs]
    sessions = [exposing(model, named) for model, named in zip((original, other), names, strict=True)]
    layers: list[PairError] = []
    for batch in counted(_batches(pairs), "looking for the first value that differs", progress):
        expected = sessions[0].run(feeds, [pair.first.name or "" for pair in batch])
        got = sessions[1].run(feeds, [pair.name for pair in batch])
        layers += [_layer(pair, expected[pair.first.name or ""], got[pair.name]) for pair in batch]
    place = next((i for i, layer in enumerate(layers) if not layer.error.equal), None)
    return None if place is None else _found(original, other, pairs, tuple(layers), place)


def _layer(pair: Pair, expected: Any, got: Any) -> PairError:
    return PairError(compare_values(pair.name, expected, got), pair.first.name or "")


def _batches(pairs: Sequence[Pair]) -> list[Sequence[Pair]]:
    return [pairs[start : start + _AT_ONCE] for start in range(0, len(pairs), _AT_ONCE)]


def _found(
    original: ir.Model, other: ir.Model, pairs: Sequence[Pair], layers: tuple[PairError, ...], place: int
) -> Bisection:
    pair, error = pairs[place], layers[place].error
    old, new = pair.first.producer(), pair.second.producer()
    assert old is not None
    assert new is not None
    unpaired = _unpaired(other, new, {one.second for one in pairs})
    made = _mark(other, new) or _mark(original, old)
    if unpaired and not made and all(one.second.is_graph_output() for one in pairs):
        reason = "not known: no inner values of the two models could be paired, neither by name nor by structure"
        return Bisection(error, None, None, None, None, reason, place, layers)
    if unpaired and not made:
        made = f"not known: {', '.join(map(repr, unpaired))}, an input of the node, has no counterpart; the first difference may be earlier"
    rewrite = made or _difference((original, old), (other, new))
    ids = node_ids(other.graph)[new], node_ids(original.graph)[old]
    return Bisection(error, ids[0], new.op_type, ids[1], old.op_type, rewrite, place, layers)


def _unpaired(model: ir.Model, node: ir.Node, pairs: set[ir.Value]) -> list[str]:
    """Return the names of what `node` reads that is computed in `model` and has no partner."""
    constants = Constants(model)
    read = dict.fromkeys(value for value in dependencies(node) if value not in constants and not value.is_graph_input())
    return [value.name or "" for value in read if value not in pairs]


def _mark(model: ir.Model, node: ir.Node) -> str:
    """Return the rewrite that wrote `node`, from its metadata; empty where no rewrite of onnxtile did."""
    notes = node.metadata_props
    if keys.TILE in notes:
        return f"tile: a part of {_source(notes[keys.TILE])}"
    if keys.LOWERED in notes:
        return f"fuse --lower: the meta-op {notes[keys.LOWERED]} became {node.op_type}"
    function = model.functions.get(node.op_identifier())
    if keys.FUSED in notes and function is not None:
        return f"fuse: the pattern {function.metadata_props.get(keys.META_OP, function.name)}"
    return ""


def _source(mark: str) -> str:
    try:
        content = json.loads(mark)
    except ValueError:
        return mark
    return f"{content['op']} {content['node']!r}" if {"op", "node"} <= content.keys() else mark


def _difference(first: tuple[ir.Model, ir.Node], second: tuple[ir.Model, ir.Node]) -> str:
    """Describe the difference of two nodes that compute paired values from inputs that agree."""
    (original, old), (other, new) = first, second
    if old.op_type != new.op_type:
        return f"{old.op_type} became {new.op_type}, not by a rewrite of onnxtile"
    changed = [name for name in old.attributes if repr(old.attributes[name]) != repr(new.attributes.get(name))]
    if changed or old.attributes.keys() != new.attributes.keys():
        return f"the attribute {', '.join(changed or sorted(new.attributes.keys() - old.attributes.keys()))} differs"
    constants = Constants(original), Constants(other)
    for position, (before, after) in enumerate(zip(old.inputs, new.inputs, strict=False)):
        if before is None or after is None or before not in constants[0] or after not in constants[1]:
            continue
        if not np.array_equal(constants[0].array(before), constants[1].array(after)):
            return f"the constant {after.name!r}, its input {position}, differs"
    return "the node is the same in both models: its inputs differ within the tolerance, or its function differs"
