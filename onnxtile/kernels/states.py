"""Finds the states of a model: pairs of an input and an output, given by the user, or known by an operator or by names."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import field

import onnx_ir as ir

from onnxtile.kernels.aliases import LayoutFacts, operands_of_state
from onnxtile.model import keys
from onnxtile.operators.table import operator_of
from onnxtile.shapes.resolve import tensor_bytes
from onnxtile.system.dataclass import dataclass
from onnxtile.system.errors import UsageError, nearest

# Names of inputs and outputs that are one state: past_key_values.0.key and present.0.key, cache_in and cache_out, h0 and hn.

_BEFORE = frozenset({"past", "in", "input", "prev", "previous", "old", "init", "initial", "last"})
_AFTER = frozenset({"present", "out", "output", "new", "next", "updated", "final", "cur", "current"})
_EARLIER = frozenset({"past", "prev", "previous", "old"})
"""Words that only a state has: without them, an output of the same words is its next value, and numbers suffice."""
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
    """Return the words of `name`, in lower case; those of "key_values", which only says that both are there, are left out."""
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
    """Return the tensor that `value` is a view or a copy in another memory of."""
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
        raise UsageError(f"the state {name!r} is not an {kind} of the model that has bytes in a run", hint=hint)


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
            f"the input {before.name!r} is an output, too, so {after.name!r} cannot take its place",
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
    """Yield the pairs of an output and the input that its operator makes it of, through views."""
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
