"""Reads the main graph of a model, and the bodies in it, as graphs of kernels with their states."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import field
from functools import cached_property

import onnx_ir as ir

from onnxtile.kernels.aliases import Alias, InputStream, LayoutFacts, kind_name, operands_of_state, spans_read
from onnxtile.kernels.kernel_graph import (
    ARENA,
    AROUND,
    CONSTANT,
    NONE,
    OUTSIDE,
    UNKNOWN,
    GraphKernel,
    GraphTensor,
    KernelBody,
    KernelGraph,
    Share,
    StateShare,
    TensorRead,
)
from onnxtile.model import keys
from onnxtile.model.binding import binding
from onnxtile.model.topology import bodies_of, dependencies, has_body, node_id, node_ids, values_in
from onnxtile.operators.node_view import operator_name
from onnxtile.operators.table import CONTROL_FLOW, operator_of, sharing_of
from onnxtile.shapes.opened_calls import inside_of
from onnxtile.shapes.resolve import granule, tensor_bytes
from onnxtile.system.dataclass import dataclass
from onnxtile.system.errors import ModelError, UsageError, nearest

# Finds the states of a model: pairs of an input and an output, given by the user, or known by an operator or by names.
#
# Such names are past_key_values.0.key and present.0.key, cache_in and cache_out, h0 and hn.

_BEFORE = frozenset({"past", "in", "input", "prev", "previous", "old", "init", "initial", "last"})
_AFTER = frozenset({"present", "out", "output", "new", "next", "updated", "final", "cur", "current"})
_EARLIER = frozenset({"past", "prev", "previous", "old"})
"""Words that only a state has. An output whose words are the others is its next value, even where these are only numbers."""
_FIRST, _LAST = "0", "n"
_CELLS = {"hx": "hy", "cx": "cy"}
"""Words of PyTorch for the state before and after."""
_SAME = "="
"""The first word of a key that an output has without a word that says after."""
_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")


def matching_names(inputs: Iterable[str], outputs: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Yield each of `inputs` with the one of `outputs` that has the same words, apart from those that say before or after.

    A name with several partners has none.
    """
    outputs = list(outputs)
    before: dict[tuple[str, ...], list[str]] = {}
    after: dict[tuple[str, ...], list[str]] = {}
    for names, keys_of, names_of in ((inputs, _keys_before, before), (outputs, _keys_after, after)):
        for name in names:
            for key in keys_of(_words(name)):
                names_of.setdefault(key, []).append(name)
    seen: set[str] = set()
    for key, names in before.items():
        partners = after.get(key, [])
        if len(names) == len(partners) == 1 and seen.isdisjoint((names[0], partners[0])):
            seen.update((names[0], partners[0]))
            yield names[0], partners[0]


def _words(name: str) -> tuple[str, ...]:
    """Return the words of `name`, in lower case; "values" after "key" is left out: it only says that there are keys and values."""
    words = [word.lower() for word in _WORD.findall(name)]
    kept: list[str] = []
    for word in words:
        if (
            word in {"values", "value"}
            and kept
            and kept[-1] == "key"
            and len(kept) > 1
            and kept[-2] in _BEFORE | _AFTER
        ):
            kept.pop()
        else:
            kept.append(word)
    return tuple(kept)


def _keys_before(words: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    """Yield the words that an output for the input of these `words` may have: without "past", with it, or as h0 without the number."""
    short = words[:-1] if words[1:] and words[-1] == "i" else words
    rest = tuple(_CELLS.get(word, word) for word in short if word not in _BEFORE)
    is_earlier = not _EARLIER.isdisjoint(words)
    if any(map(str.isalpha, rest)) or (rest and is_earlier):
        yield rest
    if is_earlier and any(map(str.isalpha, rest)):
        yield (_SAME, *rest)
    # The word may be a part of the name, as in cache_last_channel.
    kept = {words, tuple(word for word in words if word not in _BEFORE - {"last"})} - {rest}
    yield from sorted(key for key in kept if len(key) > 1 and any(map(str.isalpha, key)))
    if len(words) > 1 and words[-1] == _FIRST and rest[:-1]:
        yield (*rest[:-1], _FIRST, _LAST)


def _keys_after(words: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    """Yield the words that an input for the output of these `words` may have. Most outputs without a word that says after have none."""
    yield (_SAME, *words)
    if words[:1] == ("r",) and words[2:]:
        yield words[1:]
    short = words[:-1] if words[1:] and words[-1] == "o" else words
    rest = tuple(word for word in short if word not in _AFTER)
    if rest and (len(rest) < len(words) or not set(_CELLS.values()).isdisjoint(words)):
        yield rest
    last = rest[-1] if rest else ""
    if last == _LAST and rest[:-1]:
        yield rest[:-1]
        yield (*rest[:-1], _FIRST, _LAST)
    elif len(last) == 2 and last.endswith(_LAST):
        yield (*rest[:-1], last[0])
        yield (*rest[:-1], last[0], _FIRST, _LAST)


# An input and an output of a graph that are one state: the value before a run and the value after it.

GIVEN = "given"
NAMES = "names"
STRUCTURE = "operator"


@dataclass(frozen=True)
class StatePair:
    """The state that a run reads as `input` and writes as `output`: the output of one run is the input of the next.

    `axis` is the axis along which the output is longer; None where both have one shape. `source` says how the pair is known: "given" by
    the user, by the "names" of both, or by the "operator" that makes the output of the input.
    """

    input: ir.Value
    output: ir.Value
    axis: int | None = None
    source: str = GIVEN


@dataclass(frozen=True)
class StateChoice:
    """The states that a plan keeps in place: `given` pairs of names of an input and an output and, with `takes_found`, all that are found.

    Without `finds`, none are searched for.
    """

    given: Mapping[str, str] = field(default_factory=dict)
    finds: bool = False
    takes_found: bool = False


@dataclass(frozen=True)
class States:
    """The states of a model: those `taken`, which the plan keeps in place, and those that are only `listed`."""

    taken: tuple[StatePair, ...] = ()
    listed: tuple[StatePair, ...] = ()


def states_of(facts: LayoutFacts, choice: StateChoice) -> States:
    """Return the states of the model of `facts`, in the order of its inputs.

    Raises UsageError for a given name that no input or output has, or that is given twice. So it does for given pairs of different types,
    or of shapes that cannot be one state.
    """
    taken = [*_given(facts, choice.given)]
    pairs: list[StatePair] = []
    if choice.finds:
        used = {value for pair in taken for value in (pair.input, pair.output)}
        for pair in (*_by_operators(facts), *_by_names(facts)):
            if used.isdisjoint((pair.input, pair.output)):
                used.update((pair.input, pair.output))
                pairs.append(pair)
    places = {value: number for number, value in enumerate(facts.model.graph.inputs)}
    ordered = sorted(pairs, key=lambda pair: places[pair.input])
    if not choice.takes_found:
        return States(tuple(taken), tuple(ordered))
    return States(tuple(sorted((*taken, *ordered), key=lambda pair: places[pair.input])))


def _origin(value: ir.Value, facts: LayoutFacts) -> ir.Value:
    """Return the tensor of which `value` is a view, or a copy in another memory."""
    value = facts.root(value)
    while (maker := value.producer()) is not None and is_copy(maker, facts):
        source = maker.inputs[0]
        assert source is not None
        value = facts.root(source)
    return value


def is_copy(node: ir.Node, facts: LayoutFacts) -> bool:
    """Return whether `node` copies a whole tensor into another memory."""
    function = facts.model.functions.get(node.op_identifier())
    return function is not None and function.metadata_props.get(keys.COPY) == "Identity"


def _given(facts: LayoutFacts, given: Mapping[str, str]) -> Iterator[StatePair]:
    inputs, outputs = _inputs(facts), _outputs(facts)
    seen: set[str] = set()
    for before, after in given.items():
        _require_known("input", before, inputs)
        _require_known("output", after, outputs)
        if after in seen:
            raise UsageError(f"the output {after!r} is given as the state of two inputs", hint="name each output once")
        seen.add(after)
        yield _required(inputs[before], outputs[after], facts)


def _require_known(kind: str, name: str, known: Mapping[str, ir.Value]) -> None:
    if name not in known:
        hint = nearest(name, known, f"write INPUT=OUTPUT; {kind}s of the model: {', '.join(known) or 'none'}")
        raise UsageError(f"the state {name!r} is not an {kind} of the model, or has no bytes in a run", hint=hint)


def _required(before: ir.Value, after: ir.Value, facts: LayoutFacts) -> StatePair:
    """Return the pair of both. Raises UsageError where they are not one state."""
    names = f"{before.name!r} and {after.name!r}"
    types = [facts.shapes.dtype(value) for value in (before, after)]
    if types[0] != types[1]:
        described = " and ".join("an unknown type" if dtype is None else dtype.name for dtype in types)
        raise UsageError(f"a state has one element type, but {names} are {described}", hint="name another output")
    if None in (tensor_bytes(before, facts.shapes), tensor_bytes(after, facts.shapes)):
        raise UsageError(
            f"the bytes of the state {names} are not known", hint="give open dimensions a size (--dim, --shape)"
        )
    if _stays(before, after):
        raise UsageError(
            f"the input {before.name!r} is an output, too, so {after.name!r} cannot be written over it",
            hint="let the model hand out a copy of the input",
        )
    axis = _growing_axis(before, after, facts)
    if axis is not None or _is_same(before, after, facts):
        return StatePair(before, after, axis, GIVEN)
    described = " and ".join(str(list(facts.shapes.sizes(value) or ())) for value in (before, after))
    raise UsageError(
        f"a state has one shape, but {names} have {described}",
        hint="an output may be longer on one axis where a Concat or an attention operator appends to the input",
    )


def _stays(before: ir.Value, after: ir.Value) -> bool:
    """Return whether the input `before` is an output beside `after`, and must keep its bytes to the end of the run."""
    return before is not after and before.is_graph_output()


def _by_operators(facts: LayoutFacts) -> Iterator[StatePair]:
    """Yield the pairs of an output and the input of which its operator makes it, seen through views."""
    inputs = set(_inputs(facts).values())
    for output in _outputs(facts).values():
        result = _origin(output, facts)
        node = result.producer()
        operand = None if node is None else _operand_of(node, result, facts)
        source = None if operand is None else _origin(operand, facts)
        if source is None or source not in inputs or node is None:
            continue
        # A Concat of inputs is no cache where the run does not read the result.
        if node.op_type == "Concat" and not _is_read(result, facts):
            continue
        pair = _possible(source, output, STRUCTURE, facts)
        if pair is not None:
            yield pair


def _is_read(value: ir.Value, facts: LayoutFacts) -> bool:
    """Return whether a node other than a view reads `value` or a view of it."""
    todo = [value]
    while todo:
        for node in todo.pop().consumers():
            shown = [result for result in node.outputs if _origin(result, facts) is _origin(value, facts)]
            if not shown:
                return True
            todo += shown
    return False


def _operand_of(node: ir.Node, result: ir.Value, facts: LayoutFacts) -> ir.Value | None:
    if node.op_identifier() in facts.model.functions:
        return None
    operands = operands_of_state(node, is_standard=facts.is_standard(node))
    output = next((i for i, value in enumerate(node.outputs) if value is result), -1)
    index = operands.get(output)
    return node.inputs[index] if index is not None and index < len(node.inputs) else None


def _by_names(facts: LayoutFacts) -> Iterator[StatePair]:
    inputs, outputs = _inputs(facts), _outputs(facts)
    for before, after in matching_names(inputs, outputs):
        pair = _possible(inputs[before], outputs[after], NAMES, facts)
        if pair is not None:
            yield pair


def _possible(before: ir.Value, after: ir.Value, source: str, facts: LayoutFacts) -> StatePair | None:
    """Return the pair of both where they have one type and shapes of a state, and the output may take the place of the input."""
    if _stays(before, after) or facts.shapes.dtype(before) != facts.shapes.dtype(after):
        return None
    if None in (tensor_bytes(before, facts.shapes), tensor_bytes(after, facts.shapes)):
        return None
    axis = _growing_axis(before, after, facts)
    if axis is None and not _is_same(before, after, facts):
        return None
    return StatePair(before, after, axis, source)


def _is_same(before: ir.Value, after: ir.Value, facts: LayoutFacts) -> bool:
    """Return whether both have one shape, at all sizes of a range."""
    shapes = facts.shapes
    if shapes.sizes(before) != shapes.sizes(after):
        return False
    formulas = shapes.formulas(before), shapes.formulas(after)
    return None in formulas or formulas[0] == formulas[1]


def _growing_axis(before: ir.Value, after: ir.Value, facts: LayoutFacts) -> int | None:
    """Return the axis on which `after` is longer than `before`, to which its operator appends; None where that is not so."""
    shapes = facts.shapes
    inner, outer = shapes.sizes(before), shapes.sizes(after)
    if inner is None or outer is None or len(inner) != len(outer):
        return None
    axes = [axis for axis, (size, longer) in enumerate(zip(inner, outer, strict=True)) if size != longer]
    if len(axes) != 1 or inner[axes[0]] > outer[axes[0]]:
        return None
    result = _origin(after, facts)
    node = result.producer()
    row = None if node is None else operator_of(node)
    if node is None or row is None or not row.state_grows:
        return None
    operand = _operand_of(node, result, facts)
    return axes[0] if operand is not None and _origin(operand, facts) is before else None


def _inputs(facts: LayoutFacts) -> dict[str, ir.Value]:
    """Return the inputs of the model that are tensors given in each run, by name."""
    return {value.name or "": value for value in facts.model.graph.inputs if value not in facts.constants}


def _outputs(facts: LayoutFacts) -> dict[str, ir.Value]:
    """Return the outputs of the model that a node makes in each run, by name."""
    outputs = (value for value in facts.model.graph.outputs if value.producer() is not None)
    return {value.name or "": value for value in outputs if value not in facts.constants}


PLACINGS = ("outputs", "inside", "outside")
"""The part of the interface that lies in the arena: outputs, both inputs and outputs (inside), or neither (outside)."""


@dataclass(frozen=True)
class PlanScope:
    """A graph, with `io` for the place of its inputs and outputs.

    Outputs are live to the end of the run. So are inputs, unless `overwrite_inputs` frees their bytes after the last step that reads them.
    `borrows` marks the body of a function: views and parts of its operands stay in place, because the caller keeps the operands until the
    function ends. Input and output of each of `states` lie in the arena, whatever `io` says, and the input may be overwritten. Of a body
    that `repeats`, a state whose input and output cannot have one address is no state, but an input and an output. Raises UsageError for an
    invalid `io`, and for `overwrite_inputs` with inputs outside the arena.
    """

    graph: ir.Graph
    io: str = "outputs"
    overwrite_inputs: bool = False
    borrows: bool = False
    states: tuple[StatePair, ...] = ()
    repeats: bool = False

    def __post_init__(self) -> None:
        if self.io not in PLACINGS:
            raise UsageError(f"invalid io {self.io!r} (choose {', '.join(PLACINGS)})")
        if self.overwrite_inputs and self.io != "inside":
            raise UsageError("inputs outside the arena cannot be overwritten", hint="add --io inside")

    @cached_property
    def given(self) -> tuple[ir.Value, ...]:
        """The inputs in the arena; they are there before the first step."""
        return tuple(self.graph.inputs) if self.io == "inside" else tuple(pair.input for pair in self.states)

    @cached_property
    def lasting(self) -> tuple[ir.Value, ...]:
        """The outputs in the arena."""
        return tuple(pair.output for pair in self.states) if self.io == "outside" else tuple(self.graph.outputs)

    def outside(self) -> Iterator[tuple[ir.Value, str]]:
        """Yield the inputs and outputs outside the arena, each with the reason."""
        ends = {value for pair in self.states for value in (pair.input, pair.output)}
        if self.io != "inside":
            yield from ((value, "a graph input") for value in self.graph.inputs if value not in ends)
        if self.io == "outside":
            outputs = (value for value in self.graph.outputs if value.producer() is not None and value not in ends)
            yield from ((value, "a graph output") for value in outputs)


def read_kernels(facts: LayoutFacts, scope: PlanScope) -> KernelGraph:
    """Return the kernels of the graph of `scope`, and those of its bodies, read once for all who have these `facts`.

    Raises ModelError where a node reads what is made after it.
    """
    if scope not in facts.read:
        facts.read[scope] = _GraphReader(facts, scope).read()
    graph: KernelGraph = facts.read[scope]
    return graph


class _GraphReader:
    def __init__(self, facts: LayoutFacts, scope: PlanScope) -> None:
        self._facts, self._scope = facts, scope
        self._tensors: list[GraphTensor] = []
        self._numbers: dict[ir.Value, int] = {}
        self._outputs = frozenset(scope.graph.outputs)
        # A constant that is a graph output is treated as any output: outside the arena, if outputs are.
        self._outside = {
            value: reason
            for value, reason in scope.outside()
            if value not in facts.constants or value.producer() is not None
        }
        self._streams = {value: stream for value, stream in facts.streams.items() if value in scope.graph.inputs}
        self._outside |= dict.fromkeys(self._streams, "a graph input that comes row by row")

    def read(self) -> KernelGraph:
        scope, ids = self._scope, node_ids(self._scope.graph)
        for value in scope.graph.inputs:
            self._add_input(value)
        inputs = tuple(self._numbers.values())
        for value in scope.graph.initializers.values():
            self._number(value)
        kernels = tuple(self._kernel(node, ids[node]) for node in scope.graph)
        outputs = tuple(map(self._number, scope.graph.outputs))
        given = (value for value in scope.given if value not in self._streams)
        return KernelGraph(
            tuple(self._tensors),
            kernels,
            tuple(map(self._number, given)),
            tuple(map(self._number, scope.lasting)),
            inputs,
            outputs,
            tuple(StateShare(self._number(pair.input), self._number(pair.output)) for pair in scope.states),
            not scope.overwrite_inputs,
            scope.repeats,
            tuple(self._stream(stream) for stream in self._streams.values()),
        )

    def _stream(self, stream: InputStream) -> tuple[int, ...]:
        """Return the numbers of the kernels that read the rows of an input, in their order."""
        places = {node: position for position, node in enumerate(self._scope.graph)}
        return tuple(places[read.node] for read in stream.reads)

    def _kernel(self, node: ir.Node, name: str) -> GraphKernel:
        facts, holds = self._facts, has_body(node)
        values = tuple(dict.fromkeys(dependencies(node)))
        self._require_made(values, name)
        # Constants, and tensors around a body, are numbered where they are first read.
        read = tuple(map(self._number, values))
        shares = facts.lawful(node)
        possible = {alias.value: alias for alias in shares if alias.rule in {"view", "cut"} and self._is_near(alias)}
        makes = tuple(self._add_result(value, possible.get(value)) for value in node.outputs if value.name)
        bodies = tuple(self._bodies(node)) if holds else ()
        # The bodies of If, Loop and Scan have plans of their own.
        inside = tuple(self._inside(node)) if holds and not bodies else ()
        move = sharing_of(node) if facts.is_standard(node) else None
        return GraphKernel(
            name,
            operator_name(node),
            tuple(NONE if value is None else self._numbers[value] for value in node.inputs),
            tuple(
                map(TensorRead, read, (spans_read(node, value, facts) if move == "cut" else None for value in values))
            ),
            makes,
            inside,
            tuple(map(self._share, shares)),
            all(value in facts.constants for value in node.outputs),
            move,
            keys.TILE in node.metadata_props,
            bodies,
            node,
        )

    def _inside(self, node: ir.Node) -> Iterator[int]:
        """Yield the numbers of the values that `node` makes in its bodies while it runs as one kernel."""
        reason = f"made inside {node_id(node)!r}, which runs as one kernel"
        results = (value for body in bodies_of(node) for value in values_in(body.graph) if value.name)
        return (self._add(value, OUTSIDE, reason) for value in results)

    def _require_made(self, values: tuple[ir.Value, ...], name: str) -> None:
        for value in values:
            maker = value.producer()
            if value not in self._numbers and maker is not None and maker.graph is self._scope.graph and value.name:
                raise ModelError(f"the node {name!r} reads {value.name!r}, which is made after it")

    def _share(self, alias: Alias) -> Share:
        return Share(alias.rule, self._numbers[alias.value], self._number(alias.source), alias.at)

    def _bodies(self, node: ir.Node) -> Iterator[KernelBody]:
        for attribute, body in planned_bodies_of(node, self._facts):
            states = carried(node, body, self._facts)
            scope = PlanScope(body, "inside", borrows=attribute is None, states=states, repeats=True)
            yield KernelBody(attribute, read_kernels(self._facts, scope))

    # The role of each value: in the arena, constant, outside, or of unknown size, with the reason.

    def _number(self, value: ir.Value) -> int:
        """Return the number of `value`; one that is met first here is a constant, or belongs to the graph around this one."""
        if value not in self._numbers:
            self._add(value, CONSTANT if value in self._facts.constants else AROUND)
        return self._numbers[value]

    def _add(self, value: ir.Value, role: str, reason: str = "") -> int:
        shapes = self._facts.shapes
        dtype, size, dims = shapes.dtype(value), tensor_bytes(value, shapes), shapes.sizes(value)
        unit = 1 if dtype is None or size is None else granule(dtype)
        type_ = None if dtype is None else dtype.name
        self._numbers[value] = len(self._tensors)
        self._tensors.append(
            GraphTensor(value.name or "", role, size, type_, dims, unit, reason, value in self._facts.constants, value)
        )
        return self._numbers[value]

    def _add_input(self, value: ir.Value) -> None:
        if value in self._facts.constants:
            self._add(value, CONSTANT)
        elif value in self._outside:
            self._add(value, OUTSIDE, self._outside[value])
        else:
            self._place(value, None)

    def _add_result(self, value: ir.Value, alias: Alias | None) -> int:
        # A constant that is a graph output is written into the arena by the node that makes it.
        if value in self._facts.constants and value not in self._outputs:
            return self._add(value, CONSTANT)
        return self._place(value, alias)

    def _place(self, value: ir.Value, alias: Alias | None) -> int:
        reason = self._outside.get(value) or no_fixed_bytes(value, self._facts)
        if reason is not None:
            return self._add(value, OUTSIDE, reason)
        if tensor_bytes(value, self._facts.shapes) is None:
            return self._add(value, UNKNOWN, why_unknown(value, self._facts))
        # A view that is a graph output lies inside the arena even if its source does not: it is a copy.
        if alias is None or value in self._outputs or self._is_held(alias.source):
            return self._add(value, ARENA)
        kind = "view" if alias.rule == "view" else "part"
        return self._add(value, OUTSIDE, f"a {kind} of {alias.source.name!r}, which lies outside")

    def _is_held(self, value: ir.Value) -> bool:
        return value in self._facts.constants or self._tensors[self._numbers[value]].role == ARENA

    def _is_near(self, alias: Alias) -> bool:
        """Return whether a view may stay in place: a body of If, Loop or Scan shares no bytes with the graph around it."""
        maker = alias.source.producer()
        return self._scope.borrows or (alias.source.graph if maker is None else maker.graph) is self._scope.graph


def no_fixed_bytes(value: ir.Value, facts: LayoutFacts) -> str | None:
    """Return why `value` has no fixed bytes; None for one that has."""
    if facts.shapes.never(value) is not None:
        return facts.shapes.never(value)
    if value in facts.containers:
        name = kind_name(facts.containers[value])
        return f"{'an' if name == 'optional' else 'a'} {name} has no fixed bytes"
    if facts.shapes.dtype(value) == ir.DataType.STRING:
        return "strings have no fixed bytes"
    return None


def why_unknown(value: ir.Value, facts: LayoutFacts) -> str:
    """Return why the bytes of `value` are not known."""
    if facts.shapes.sizes(value) is not None:
        return "its element type is not known"
    bindable = [symbol for dim in facts.shapes.dims(value) or () for symbol in facts.unbound.bindable(dim)]
    if bindable:
        symbols = " and ".join(map(repr, dict.fromkeys(bindable)))
        return f"its size depends on {symbols}: bind it with {binding(bindable)}"
    return facts.unbound.once_bound(facts.shapes.reason(value))


# The bodies that are planned inside the arena of the graph around them.


def planned_bodies_of(node: ir.Node, facts: LayoutFacts) -> Iterator[tuple[str | None, ir.Graph]]:
    """Yield the planned bodies of `node` with the name of the attribute; None is the body of the function that it calls."""
    inside = inside_of(node)
    if inside is not None:
        yield None, inside
        return
    if node.op_type == "Scan" and facts.opset() < 9:
        return  # such a Scan runs over a batch, as one kernel
    if node.op_type in CONTROL_FLOW and facts.is_standard(node):
        yield from ((body.attribute, body.graph) for body in bodies_of(node) if body.position is None)


# The carried values of a Loop or Scan: inputs and outputs of its body that are one state of the iterations.


def carried(node: ir.Node, body: ir.Graph, facts: LayoutFacts) -> tuple[StatePair, ...]:
    """Return the carried values of `node` with this `body` that have one type and one shape of known size in all iterations."""
    if not facts.is_standard(node):
        return ()
    inputs, outputs = list(body.inputs), list(body.outputs)
    if node.op_type == "Loop":
        pairs = list(zip(inputs[2:], outputs[1:], strict=False))
    elif node.op_type == "Scan":
        count = len(inputs) - node.attributes.get_int("num_scan_inputs", 0)
        pairs = list(zip(inputs[:count], outputs[:count], strict=False))
    else:
        return ()
    uses = Counter(outputs)
    alone = ((before, after) for before, after in pairs if uses[after] == 1 and _is_made_in(body, after))
    return tuple(
        StatePair(before, after, source=STRUCTURE) for before, after in alone if _is_one_size(before, after, facts)
    )


def _is_made_in(body: ir.Graph, value: ir.Value) -> bool:
    maker = value.producer()
    return maker is not None and maker.graph is body


def _is_one_size(before: ir.Value, after: ir.Value, facts: LayoutFacts) -> bool:
    shapes = facts.shapes
    if before in facts.constants or after in facts.constants or shapes.dtype(before) != shapes.dtype(after):
        return False
    if tensor_bytes(before, shapes) is None or shapes.sizes(before) != shapes.sizes(after):
        return False
    is_bound = shapes.is_bound(before) or shapes.is_bound(after)
    formulas = shapes.formulas(before), shapes.formulas(after)
    return not is_bound or (formulas[0] is not None and formulas[0] == formulas[1])
