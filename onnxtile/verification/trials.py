"""Runs of two models on the same inputs, the verdict on their outputs, and the first value that differs."""

from __future__ import annotations

import hashlib
import json
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from itertools import tee
from typing import Any, ClassVar, TypeAlias, TypeVar

import numpy as np
import onnx_ir as ir

from onnxtile.declare.verb import JsonFields, VerbResult
from onnxtile.model import keys
from onnxtile.model.binding import example, free_inputs
from onnxtile.model.constants import Constants
from onnxtile.model.feeds import Feeds, Ranges, domains, given_shapes, sample_feeds
from onnxtile.model.session import ModelRunner, repeatable_session, run_each
from onnxtile.model.submodel import exposing
from onnxtile.model.topology import dependencies, node_ids
from onnxtile.operators.takes import Domain
from onnxtile.system.dataclass import dataclass
from onnxtile.system.errors import ModelError, OnnxtileError
from onnxtile.system.long_work import Progress, counted, silent
from onnxtile.system.runtime import Array
from onnxtile.verification.open_sizes import Assignment, assignments, open_inputs, sizes_given
from onnxtile.verification.values import OutputError, badness, compare_values, largest_error, missing


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
        for first_value, other in self._matched(first, second):
            for mine, value in zip(first_value.outputs, other.outputs, strict=True):
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
        return [*((value, other) for other, value in chosen.items()), *zip(*left, strict=False)]


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
    """How far one value of the second model is from the one of the first that it was paired with, which is called `original` there.

    `error` has the difference, and the value's name.
    """

    error: OutputError
    original: str

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON of one layer."""
        all_of_it = self.error.to_dict()
        kept = {key: all_of_it[key] for key in ("name", "max_abs", "max_rel", "tolerance", "equal")}
        return {**kept, "original": self.original}


@dataclass(frozen=True)
class Bisection(JsonFields):
    """The first value, in the order of the second model, that both models make and that differs; `agreeing` come before it.

    `node` makes it in the second model, `original` in the first; `rewrite` says what became of the original there. Where no value between
    inputs and outputs could be paired, all of these are None, since any node may be the first. `layers` are all pairs. `error` is the
    difference; `op` and `original_op` are the operators of these two nodes.
    """

    JSON = "value=error node op original original_op rewrite agreeing layers"

    error: OutputError
    node: str | None
    op: str | None
    original: str | None
    original_op: str | None
    rewrite: str
    agreeing: int
    layers: tuple[PairError, ...] = field(default=(), repr=False)


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
    index = next((i for i, layer in enumerate(layers) if not layer.error.equal), None)
    return None if index is None else _found(original, other, pairs, tuple(layers), index)


def _layer(pair: Pair, expected: Any, got: Any) -> PairError:
    return PairError(compare_values(pair.name, expected, got), pair.first.name or "")


def _batches(pairs: Sequence[Pair]) -> list[Sequence[Pair]]:
    return [pairs[start : start + _AT_ONCE] for start in range(0, len(pairs), _AT_ONCE)]


def _found(
    original: ir.Model, other: ir.Model, pairs: Sequence[Pair], layers: tuple[PairError, ...], index: int
) -> Bisection:
    pair, error = pairs[index], layers[index].error
    old, new = pair.first.producer(), pair.second.producer()
    assert old is not None
    assert new is not None
    unpaired = _unpaired(other, new, {known.second for known in pairs})
    mark = _mark(other, new) or _mark(original, old)
    if unpaired and not mark and all(known.second.is_graph_output() for known in pairs):
        reason = "not known: no inner values of the two models could be paired, neither by name nor by structure"
        return Bisection(error, None, None, None, None, reason, index, layers)
    if unpaired and not mark:
        mark = f"not known: {', '.join(map(repr, unpaired))}, an input of the node, has no counterpart; the first difference may be earlier"
    rewrite = mark or _difference((original, old), (other, new))
    ids = node_ids(other.graph)[new], node_ids(original.graph)[old]
    return Bisection(error, ids[0], new.op_type, ids[1], old.op_type, rewrite, index, layers)


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


# Edge inputs: zeros, ones, large, small and negative numbers, NaN, infinity, and sequences and optional values without content.

Fill = Callable[[Array, Domain], Array]
"""Makes an edge input from a random input and the range that its consumers allow."""


def _constant(number: float) -> Fill:
    return lambda array, domain: domain.clipped(np.full(array.shape, number), array.dtype)


def _scaled(floats: float, integers: str) -> Fill:
    """Scale floats; integers become the lowest or the highest that is allowed."""

    def fill(array: Array, domain: Domain) -> Array:
        if not _is_float(array):
            low, high = domain.bounds(array.dtype)
            return np.full(array.shape, low if integers == "low" else high).astype(array.dtype)
        return domain.clipped(array.astype(np.float64) * floats, array.dtype)

    return fill


def _negative(array: Array, domain: Domain) -> Array:
    return domain.clipped(-np.abs(array.astype(np.float64)) - 1, array.dtype)


def _with(number: float) -> Fill:
    """Put a number that is not finite at the first place of floats."""

    def fill(array: Array, domain: Domain) -> Array:
        if not _is_float(array) or not array.size or domain.is_bounded:
            return array
        filled = array.copy()
        filled.flat[0] = number
        return filled

    return fill


def _is_float(array: Array) -> bool:
    return array.dtype.kind == "f" or (array.dtype.kind == "V" and "float" in array.dtype.name)


EDGES: dict[str, Fill] = {
    "zeros": _constant(0),
    "ones": _constant(1),
    "large": _scaled(1e4, "high"),
    "small": _scaled(1e-6, "low"),
    "negative": _negative,
    "NaN": _with(np.nan),
    "infinity": _with(np.inf),
}
"""The edges, in the order in which they are run. Large floats are 10,000 times random ones, still far from overflow in float32."""


def edge_feeds(model: ir.Model, near: Feeds, *, ranges: Ranges | None = None) -> Iterator[tuple[str, Feeds]]:
    """Yield sets of inputs at each edge that differ from `near`, of its shapes, and what the edge is called.

    An input that must have certain values (a shape, a mask, an index) stays inside them; texts and sequences stay as they are,
    but at the edge "empty", where sequences have no elements and optional values no content. A set that
    came before under another name is left out.
    """
    shapes = given_shapes(near)
    known = Assignment({}, {value: shapes.get(value.name or "") for value in free_inputs(model)})
    allowed = domains(model, known.sizes, ranges)
    seen = [_bits(near)]
    for name, fill in EDGES.items():
        feeds = {key: _filled(fill, value, allowed[key]) for key, value in near.items()}
        if _bits(feeds) not in seen:
            seen.append(_bits(feeds))
            yield name, feeds
    empty: dict[str, list[Array] | None] = {
        value.name or "": None if isinstance(value.type, ir.OptionalType) else []
        for value in free_inputs(model)
        if isinstance(value.type, ir.OptionalType | ir.SequenceType)
    }
    if empty:
        yield "empty", {**near, **empty}


def _filled(fill: Fill, value: Array | list[Array] | None, domain: Domain) -> Array | list[Array] | None:
    if value is None or isinstance(value, list) or value.dtype.kind in "OSUc" or domain.fixed is not None:
        return value
    return fill(value, domain)


def _bits(feeds: Feeds) -> list[bytes]:
    return [value.tobytes() for value in feeds.values() if isinstance(value, np.ndarray) and value.dtype.kind != "O"]


T = TypeVar("T")
OutputComparison: TypeAlias = Callable[[str, Any, Any], OutputError]
"""Returns the difference of an output, from its name, the expected value and the computed one."""


@dataclass(frozen=True, repr=False)
class Verdict(VerbResult):
    """Whether two models agree, output by output, on how many sets of inputs, and with which sizes for symbolic dimensions.

    `inputs` names the runs. `skipped` are sets of edge inputs that the first model itself does not take, with onnxruntime's reason.
    `outputs` are those that were compared. `not_compared` names the others with the reason: they depend on random numbers that are not the
    same in both models.

    `runs` is the number of sets of inputs, `dims` has the sizes of symbolic dimensions by name. `bisection` is the first value that
    differs; None where it was not asked for.
    """

    verb: ClassVar[str] = "verify"
    JSON = "equal outputs not_compared runs dims inputs skipped bisect=bisection?"

    outputs: tuple[OutputError, ...]
    runs: int
    dims: Mapping[str, int] = field(default_factory=dict)
    inputs: tuple[str, ...] = ()
    skipped: Mapping[str, str] = field(default_factory=dict)
    bisection: Bisection | None = None
    not_compared: Mapping[str, str] = field(default_factory=dict)

    @property
    def equal(self) -> bool:
        """Whether every output that was compared agrees within its tolerance; False where no output could be compared."""
        return all(output.equal for output in self.outputs) and not self.is_empty

    @property
    def is_empty(self) -> bool:
        """Whether there are outputs, and none of them could be compared."""
        return bool(self.not_compared) and not self.outputs

    @property
    def max_rel(self) -> float:
        """The worst relative difference of all outputs."""
        return max((output.max_rel for output in self.outputs), default=0.0)

    @property
    def summary(self) -> str:
        """Whether the outputs are equal, how many were not compared, and the largest error."""
        left = f"{len(self.not_compared):,} outputs not compared"
        if self.is_empty:
            return f"{left}, {self.runs:,} runs"
        state = "equal" if self.equal else f"{sum(not output.equal for output in self.outputs):,} differ"
        worst = largest_error(output.to_dict() for output in self.outputs)
        compared = f"{len(self.outputs):,} outputs"
        return ", ".join([compared, state, *([left] if self.not_compared else []), f"{self.runs:,} runs", worst])


@dataclass(frozen=True)
class Trial:
    """Inputs on which a model runs, what it gave, and what the inputs are called: "random 1", "zeros"."""

    feeds: Mapping[str, Any]
    results: Mapping[str, Any]
    inputs: str = ""


def run_original(
    model: ir.Model,
    *,
    runs: int = 2,
    seed: int = 0,
    given: Feeds | None = None,
    ranges: Ranges | None = None,
    runner: ModelRunner | None = None,
    progress: Progress = silent,
) -> tuple[list[Trial], dict[str, int]]:
    """Return trials of `model`, and the sizes its free dimensions were given for them.

    One trial on the inputs `given` (as `onnxtile.model.feeds.read_inputs` returns them), else `runs` trials on random ones, whose
    numbers lie in `ranges` where these name an input. `runner` is a session of `model`, made here where none is given.
    """
    runner = repeatable_session(model) if runner is None else runner
    if given is not None:
        return [Trial(given, runner.run(given), "given")], sizes_given(model, given)

    def attempt(assignment: Assignment) -> list[Trial]:
        seeds = counted(range(seed, seed + runs), "running the original", progress)
        drawn, given = tee(sample_feeds(model, assignment.sizes, seed=number, ranges=ranges) for number in seeds)
        results = zip(drawn, run_each(runner, given), strict=True)
        return [Trial(fed, values, f"random {run}") for run, (fed, values) in enumerate(results, 1)]

    return first_that_runs(model, attempt)


def first_that_runs(model: ir.Model, attempt: Callable[[Assignment], T]) -> tuple[T, dict[str, int]]:
    """Return the result of `attempt` for the first sizes with which it raises no ModelError, and these sizes."""
    failure: OnnxtileError | None = None
    for assignment in assignments(model):
        try:
            return attempt(assignment), dict(assignment.dims)
        except ModelError as error:
            failure = failure or error
    assert failure is not None
    open_ = open_inputs(model)
    hint = (
        f"give sizes with which it runs, for example {example(open_)}"
        if open_
        else "the model that was given does not run so"
    )
    raise ModelError(failure.message, hint=failure.hint or hint)


def run_edges(
    model: ir.Model, near: Feeds, runner: ModelRunner, *, ranges: Ranges | None = None
) -> tuple[list[Trial], dict[str, str]]:
    """Return trials of `model` on edge inputs of the shapes that `near` has, and the edges that it refuses, with the reason.

    `runner` is a session of `model`.
    """
    trials, skipped = [], {}
    for name, feeds in edge_feeds(model, near, ranges=ranges):
        try:
            trials.append(Trial(feeds, runner.run(feeds), name))
        except ModelError as error:
            skipped[name] = error.message
    return trials, skipped


def compare_with(
    trials: Iterable[Trial],
    other: ir.Model,
    dims: Mapping[str, int],
    progress: Progress = silent,
    compared: OutputComparison = compare_values,
    content: bytes | None = None,
) -> Verdict:
    """Run `other` on the inputs of `trials` and compare every output with theirs; `content` are the bytes of its file, where known.

    Raises ModelError where it takes other inputs, or onnxruntime refuses it.
    """
    trials = list(trials)
    for trial in trials[:1]:
        _require_inputs(other, trial.feeds)
    runner = repeatable_session(other, content)
    worst: dict[str, OutputError] = {}
    results = run_each(runner, (trial.feeds for trial in trials))
    for trial, got in zip(counted(trials, "comparing", progress), results, strict=True):
        for error in _errors(trial.results, got, compared):
            if error.name not in worst or badness(error) > badness(worst[error.name]):
                worst[error.name] = replace(error, inputs=trial.inputs if len(trials) > 1 else "")
    return Verdict(tuple(worst.values()), len(trials), dims, tuple(trial.inputs for trial in trials))


def _errors(expected: Mapping[str, Any], got: Mapping[str, Any], compared: OutputComparison) -> Iterator[OutputError]:
    for name, value in expected.items():
        yield compared(name, value, got[name]) if name in got else missing(name)
    yield from (missing(name) for name in got if name not in expected)


def _require_inputs(model: ir.Model, feeds: Mapping[str, Any]) -> None:
    """Raise ModelError where `model` does not take `feeds`, by name, element type or shape."""
    inputs = {value.name or "": value for value in free_inputs(model)}
    if inputs.keys() != feeds.keys():
        lists = (", ".join(sorted(names)) or "none" for names in (feeds, inputs))
        raise ModelError("the models take different inputs: {} and {}".format(*lists))
    for name, value in inputs.items():
        array, dtype = feeds[name], value.dtype
        if not isinstance(array, np.ndarray) or dtype is None or value.shape is None:
            continue
        other = f"{dtype.name.lower()} [{', '.join(str(dim) for dim in value.shape)}]"
        fits = len(array.shape) == len(value.shape) and all(
            not isinstance(dim, int) or dim == size for dim, size in zip(value.shape, array.shape, strict=True)
        )
        if not fits or (dtype != ir.DataType.STRING and array.dtype != dtype.numpy()):
            mine = f"{ir.DataType.from_numpy(array.dtype).name.lower()} {list(array.shape)}"
            raise ModelError(
                f"the models take different inputs: {name!r} is {mine} in the first and {other} in the second"
            )
