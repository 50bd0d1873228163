"""Local verification: each different site alone, the original nodes beside the call that replaces them, also on edge rows."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from enum import Enum
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir

from onnxtile.declare.verb import JsonFields
from onnxtile.fusion.record import NodeRecord, Past, Record, past_of
from onnxtile.model import keys
from onnxtile.model.constants import Constants
from onnxtile.model.feeds import draw
from onnxtile.model.node_kinds import RandomNodes, has_seed, holders
from onnxtile.model.session import AnySession
from onnxtile.model.submodel import Submodels, tensor_type
from onnxtile.model.topology import graphs_in, node_id, nodes_in
from onnxtile.shapes.resolve import Shapes
from onnxtile.system.dataclass import dataclass
from onnxtile.system.errors import ModelError
from onnxtile.system.long_work import Progress, counted, silent
from onnxtile.system.runtime import Array
from onnxtile.verification.rounding import moved_by_rounding
from onnxtile.verification.trials import Trial
from onnxtile.verification.values import ElementError, OutputError, compare_quantised, compare_values, is_inexact

COUNTS = frozenset({ir.DataType.INT64, ir.DataType.INT32})
"""Element types of shapes and indices."""


@dataclass(frozen=True)
class SiteVerdict(JsonFields):
    """The result of one site run alone; `also` counts further sites that are the same, and were not run.

    `skipped` says why a site could not be run alone, `refused` why onnxruntime does not take what it became. `edges` are the edge rows on
    which a lowered site differs, None where none were run. `call` is the name of the node, `outputs` are the worst differences of its
    results.
    """

    JSON = "call equal outputs also skipped? edges?"

    call: str
    outputs: tuple[OutputError, ...]
    also: int
    skipped: str = ""
    refused: str = ""
    edges: tuple[EdgeDifference, ...] | None = None

    @property
    def equal(self) -> bool:
        """Whether all outputs agree; also where the site could not be run alone."""
        return not self.refused and all(output.equal for output in self.outputs)


def check_sites(
    original: ir.Model, fused: ir.Model, shapes: Shapes, *, progress: Progress = silent
) -> tuple[SiteVerdict, ...]:
    """Run each different call of the last run of fuse beside the nodes of `original` it stands for, on random inputs.

    Constants are fed as they are. `shapes` are those of `original`, all inputs bound. Sites that share function, shapes and
    element types are run once. Raises ModelError where onnxruntime refuses a part.
    """
    sites = _Sites(original, fused, shapes)
    groups: dict[tuple[object, ...], list[tuple[ir.Node, ValuesByName]]] = {}
    for path, graph in _graphs(fused.graph):
        scope = sites.scopes[path]
        for call in (node for node in graph if keys.FUSED in node.metadata_props):
            groups.setdefault(sites.signature(call, scope), []).append((call, scope))
    generator = np.random.default_rng(0)
    different = counted(groups.values(), "verifying each different site", progress)
    return tuple(sites.run(*group[0], len(group) - 1, generator) for group in different)


ValuesByName = ChainMap[str, ir.Value]
"""The values that nodes of a graph can name: its own, before those of the graphs around it."""


def _graphs(graph: ir.Graph) -> Iterator[tuple[tuple[str, ...], ir.Graph]]:
    """Yield `graph` and all bodies in it, each with a path that a fused model shares with its original."""
    for path, inner in graphs_in(graph):
        yield tuple(f"{node_id(node)}.{key}" for node, key in path), inner


class _Sites:
    def __init__(self, original: ir.Model, fused: ir.Model, shapes: Shapes) -> None:
        self._cut = Submodels(original)
        self._cut_fused = Submodels(fused)
        self._past = past_of(fused)
        self._shapes = shapes
        self._constants = Constants(original)
        random = RandomNodes(original, self._constants).themselves
        self._unseeded = holders(original, lambda node: node in random and not has_seed(node))
        self._order = {node: position for position, node in enumerate(nodes_in(original.graph))}
        self.scopes: dict[tuple[str, ...], ValuesByName] = {}
        for path, graph in _graphs(original.graph):
            results = (value for node in graph for value in node.outputs if value.name)
            by_name = {value.name or "": value for value in (*graph.inputs, *graph.initializers.values(), *results)}
            self.scopes[path] = self.scopes[path[:-1]].new_child(by_name) if path else ChainMap(by_name)

    def signature(self, call: ir.Node, scope: ValuesByName) -> tuple[object, ...]:
        """Return the key of a run: all that decides its outcome besides the numbers fed."""
        reads = [None if value is None else scope.get(value.name or "") for value in call.inputs]
        known = tuple(v and (self._shapes.dtype(v), self._shapes.dims(v), v in self._constants) for v in reads)
        return (call.op_identifier(), known)

    def run(self, call: ir.Node, scope: ValuesByName, also: int, generator: np.random.Generator) -> SiteVerdict:
        inputs = list(dict.fromkeys(scope[v.name or ""] for v in call.inputs if v is not None))
        outputs = [scope[v.name] for v in call.outputs if v.name]
        unknown = [v for v in inputs if v not in self._constants and self._shapes.sizes(v) is None]
        if unknown:
            return SiteVerdict(call.name or "", (), also, f"the shape of {unknown[0].name!r} is not known")
        feeds = {v.name or "": self._feed(v, generator) for v in inputs}
        types = {value.name or "": self._type(value) for value in inputs}
        fed = {value: types[value.name or ""] for value in inputs}
        nodes = self._originals(call, scope)
        if any(map(self._unseeded, nodes)):
            return SiteVerdict(call.name or "", (), also, "it draws random numbers without a seed")
        original = self._cut.session(self._cut.model_of(nodes, fed, outputs))
        try:
            expected = original.run(feeds)
        except ModelError:
            # A shape or an index that the model computes elsewhere cannot be drawn at random.
            computed = [v for v in inputs if v not in self._constants and self._dtype(v) in COUNTS]
            if not computed:
                raise
            reason = f"{computed[0].name!r}, which the model computes, takes no random values"
            return SiteVerdict(call.name or "", (), also, reason)
        fed = {value: types[value.name or ""] for value in call.inputs if value is not None}
        fused = self._cut_fused.model_of([call], fed, [value for value in call.outputs if value.name])
        got = self._cut_fused.session(fused).run(feeds)
        errors = (compare_values(name, value, got[name]) for name, value in expected.items())
        return SiteVerdict(call.name or "", tuple(errors), also)

    def _originals(self, call: ir.Node, scope: ValuesByName) -> list[ir.Node]:
        """Return the original nodes that `call` stands for, in the order of the file, with the constants it took in."""
        names = _outputs_of(self._past, self._past.record(call))
        makers = {scope[name].producer() for name in names if name in scope}
        return sorted((node for node in makers if node is not None), key=self._order.__getitem__)

    def _feed(self, value: ir.Value, generator: np.random.Generator) -> Array:
        if value in self._constants:
            return self._constants.array(value)
        typed = ir.Value(name=value.name, type=ir.TensorType(self._dtype(value)))
        return draw(generator, typed, lambda _: self._shapes.sizes(value))

    def _dtype(self, value: ir.Value) -> ir.DataType:
        dtype = self._shapes.dtype(value)
        if dtype is None and value in self._constants:  # a constant that the conversion to another opset made
            return ir.DataType.from_numpy(self._constants.array(value).dtype)
        return dtype if dtype is not None else ir.DataType.FLOAT

    def _type(self, value: ir.Value) -> onnx.TypeProto:
        dims = self._constants.array(value).shape if value in self._constants else self._shapes.dims(value)
        return tensor_type(self._dtype(value), dims)


def _outputs_of(past: Past, record: Record) -> Iterator[str]:
    """Yield the names of all values that the nodes of `record` make, those of meta-ops within included."""
    for constant in record.constants:
        if constant.node is not None:
            yield constant.value.name
    for node in record.nodes:
        yield from _outputs_of_node(past, node)


def _outputs_of_node(past: Past, node: NodeRecord) -> Iterator[str]:
    if keys.FUSED in node.metadata:
        yield from _outputs_of(past, past.numbered(node.metadata[keys.FUSED]))
        return
    yield from (value.name for value in node.outputs)


# Edge rows: a site is run before and after it is lowered on values that random draws do not have, and what differs is named.
#
# First one input at a time has such a number everywhere, in one row of its last axis, or in one element; the others stay as they were
# drawn. A mask that is all -inf, or all false, is one of these. Then several inputs have such numbers at places that are drawn, always the
# same ones. `docs/lowerings.md` says what each effect means.


_LARGE = 1e4
"""What large numbers are multiplied by, in types that have the room for a cube of it."""
_EXTREME = frozenset({"denormal", "tiny", "huge", "-huge"})
"""Numbers whose squares leave the range of their type, upwards or downwards."""
_NUDGES = 16
"""How often inputs change by one unit in the last place: a mask of two elements must move both ways."""
_SMALL = frozenset({"-0", "denormal", "tiny"})
_NOT_FINITE = frozenset({"+inf", "-inf", "NaN"})
_FACTOR = 2
"""How much further than rounding explains a number may be off, as in `onnxtile.verification.rounding`."""


class EdgeEffect(Enum):
    """How the results on an edge row differ.

    KINDER: all that was finite is equal; what was NaN or infinite is the same, or finite. NO_NUMBER: nothing was finite, and an infinite
    number became NaN or another one. BEYOND_RANGE: the row has numbers whose squares leave the range of the type, so that the
    results depend on the order of operations. WORSE: anything else.
    """

    KINDER = "kinder"
    NO_NUMBER = "no number"
    BEYOND_RANGE = "beyond range"
    WORSE = "worse"


class EdgeRule(Enum):
    """Which differences on edge rows keep a site from being lowered: those that are worse, every one, or none."""

    KINDER = "kinder"
    STRICT = "strict"
    ANY = "any"

    def admits(self, effect: EdgeEffect) -> bool:
        """Return whether a site with a difference of that `effect` is lowered."""
        return self is EdgeRule.ANY or (self is EdgeRule.KINDER and effect is not EdgeEffect.WORSE)


@dataclass(frozen=True)
class EdgeRow:
    """Inputs of which some have numbers at an edge: `numbers` by the name of the input, and `places` ("all", "a row of", "some").

    `feeds` are the arrays by the name of the input.
    """

    numbers: Mapping[str, str]
    places: Mapping[str, str]
    feeds: Mapping[str, Array]

    @property
    def text(self) -> str:
        """What the inputs have, in words."""
        return ", ".join(f"{self.words(name)} in {name!r}" for name in self.numbers)

    def words(self, name: str) -> str:
        """Return which number an input has, and where."""
        where, number = self.places[name], self.numbers[name]
        return f"{number} at {where}" if where.startswith(_VECTOR) else f"{where} {number}"

    @property
    def extremes(self) -> set[str]:
        """Those of its numbers whose squares leave the range of their type."""
        return {*self.numbers.values()} & _EXTREME


@dataclass(frozen=True)
class EdgeDifference:
    """A difference on one edge row: `output` is the result, of which `elements` differ, for example the one at `where`.

    `refused` is the reason of a run that failed. `row` is the edge row, `effect` how the results differ.
    """

    row: EdgeRow
    effect: EdgeEffect
    output: str = ""
    elements: int = 0
    where: ElementError | None = None
    refused: str = ""

    @property
    def causes(self) -> set[str]:
        """The numbers of the row that explain the difference, of either sign: the extreme ones, or those infinite or NaN, or all."""
        numbers = {*self.row.numbers.values()}
        causes = self.row.extremes or numbers & _NOT_FINITE or numbers
        return {_UNSIGNED.get(number, number) for number in causes}

    @property
    def text(self) -> str:
        """What differs, in words."""
        if self.where is None:
            return f"with {self.row.text}, {self.refused}"
        return f"with {self.row.text}, {self.output!r} has {self.where.got} where it had {self.where.expected}"

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON of one difference."""
        inputs = {name: self.row.words(name) for name in self.row.numbers}
        if self.where is None:
            return {"inputs": inputs, "effect": self.effect.value, "refused": self.refused}
        difference = {"output": self.output, "elements": self.elements, "where": self.where.to_dict()}
        return {"inputs": inputs, "effect": self.effect.value, **difference}


def by_effect(differences: Iterable[EdgeDifference]) -> dict[str, list[str]]:
    """Return the numbers of the edge rows that differ, each once, by the worst effect that they have anywhere."""
    worst: dict[str, EdgeEffect] = {}
    for difference in differences:
        for number in difference.causes:
            worst[number] = max(worst.get(number, difference.effect), difference.effect, key=_badness)
    return {
        effect.value: [number for number in _NAMED if worst.get(number) is effect]
        for effect in EdgeEffect
        if effect in worst.values()
    }


@dataclass(frozen=True)
class SiteRuns:
    """A site as it was and as it is, loaded. Where it `rounds`, its outputs are quantised anew; `twice` are inputs of one vector twice."""

    before: AnySession
    after: AnySession
    rounds: bool = False
    twice: frozenset[str] = frozenset()

    def differences(self, feeds: Mapping[str, Array], varied: Iterable[str]) -> tuple[EdgeDifference, ...]:
        """Run both on each edge row of the inputs `varied`, the others as `feeds` have them; return what differs.

        A row that the site as it was does not take is left out.
        """
        differences = (self._difference(row) for row in edge_rows(feeds, list(varied), self.twice))
        return tuple(difference for difference in differences if difference is not None)

    def _difference(self, row: EdgeRow) -> EdgeDifference | None:
        try:
            expected = self.before.run(row.feeds)
        except ModelError:
            return None
        try:
            got = self.after.run(row.feeds)
        except ModelError as error:
            return EdgeDifference(row, EdgeEffect.WORSE, refused=" ".join(error.message.split()))

        def reach(output: str) -> float:
            moved = moved_by_rounding([self.before] * _NUDGES, [Trial(row.feeds, expected)])
            return _FACTOR * moved.get(output, 0.0)

        effects = {name: self._effect(name, value, got[name], reach) for name, value in expected.items()}
        differing = [(effect, name) for name, effect in effects.items() if effect is not None]
        if not differing:
            return None
        effect, name = max(differing, key=lambda pair: _badness(pair[0]))
        effect = EdgeEffect.BEYOND_RANGE if row.extremes else effect
        return EdgeDifference(row, effect, name, **_example(expected[name], got[name]))

    def _effect(self, name: str, expected: Array, got: Array, reach: Callable[[str], float]) -> EdgeEffect | None:
        """Return how a result differs; None where it does not, within what rounding explains."""
        compared = compare_quantised if self.rounds else compare_values
        if compared(name, expected, got).equal:
            return None
        if not is_inexact(expected) or expected.shape != got.shape:
            return EdgeEffect.WORSE
        before, after = expected.astype(np.float64), got.astype(np.float64)
        finite = np.isfinite(before)
        same = (before == after) | (np.isnan(before) & np.isnan(after))
        if not (same | np.isfinite(after)).all():
            return EdgeEffect.WORSE if finite.any() else EdgeEffect.NO_NUMBER
        numbers = [np.where(finite, array, 0).astype(expected.dtype) for array in (before, after)]
        error = compared(name, *numbers)
        smallest = float(ml_dtypes.finfo(expected.dtype).smallest_normal)  # type: ignore[no-untyped-call]
        if not error.equal and not error.max_abs <= max(smallest, reach(name)):
            return EdgeEffect.WORSE
        return None if same[~finite].all() else EdgeEffect.KINDER


_ALL, _ROW, _ONE, _SOME, _VECTOR = "all", "a row of", "one", "some", "index"
_PLACES: Mapping[str, tuple[str, ...]] = {
    **{"0": (_ALL, _ROW), "-0": (_ALL,), "denormal": (_ALL,), "tiny": (_ALL,), "large": (_ALL,)},
    **{"huge": (_ALL, _ROW, _ONE), "-huge": (_ALL, _ROW, _ONE)},
    **{"+inf": (_ALL, _ROW, _ONE, _VECTOR), "-inf": (_ALL, _ROW, _ONE), "NaN": (_ONE, _VECTOR)},
    **{"lowest": (_ALL, _ONE), "middle": (_ALL, _ONE), "highest": (_ALL, _ONE)},
    **{"false": (_ALL, _ROW, _ONE), "true": (_ALL, _ROW, _ONE)},
}
"""Where each number is put, one input at a time."""
_UNSIGNED = {"-0": "0", "-huge": "huge", "+inf": "inf", "-inf": "inf"}
_NAMED = tuple(dict.fromkeys(_UNSIGNED.get(number, number) for number in _PLACES))
_TOGETHER = 32
"""How many rows with numbers at drawn places there are for each input, at most."""
_MOST_ELEMENTS = 2**22
"""Inputs of more elements than this get one row for each number, and none of these."""
_VECTORS = 8
"""How many indices of the last axis but one get a number, each by itself: keys that a mask may hide."""
_SHARE = 0.3


def edge_rows(feeds: Mapping[str, Array], varied: Sequence[str], twice: Collection[str] = ()) -> Iterator[EdgeRow]:
    """Yield `feeds` with numbers at the edges of their types in the inputs `varied`; what counts or indexes has no edges.

    The last axis of the inputs `twice` is one vector twice.
    """
    halves = {name: feeds[name][..., : feeds[name].shape[-1] // 2] if name in twice else feeds[name] for name in varied}
    halves = {name: array for name, array in halves.items() if array.size and _numbers(array.dtype)}

    def row(arrays: Mapping[str, tuple[str, str, Array]]) -> EdgeRow:
        numbers = {name: number for name, (number, _, _) in arrays.items() if number}
        places = {name: where for name, (_, where, _) in arrays.items() if where}
        whole = {name: np.concatenate([a, a], -1) if name in twice else a for name, (_, _, a) in arrays.items()}
        return EdgeRow(numbers, places, {**feeds, **whole})

    elements = sum(array.size for array in feeds.values())
    for name, array in halves.items():
        for filled in _filled(array, briefly=elements > _MOST_ELEMENTS):
            yield row({name: filled})
    random = np.random.default_rng(0)
    for _ in range(min(_TOGETHER, _MOST_ELEMENTS // max(elements, 1)) * len(halves)):
        others = {name: _shuffled(array, random) for name, array in halves.items()}
        drawn = {name: _scattered(array, random) for name, array in others.items() if random.random() < 1 / 2}
        if drawn:
            yield row({name: drawn.get(name, ("", "", array)) for name, array in others.items()})


def _filled(array: Array, *, briefly: bool) -> Iterator[tuple[str, str, Array]]:
    """Yield the numbers at the edges, where they are put, and `array` with them there; `briefly`, each at one place."""
    indices = _indices(array)
    for number, value in _numbers(array.dtype).items():
        places = [where for where in indices if where.startswith(_PLACES[number])]
        for where in places[:1] if briefly else places:
            filled = array.copy()
            filled[indices[where]] = np.asarray(value).astype(array.dtype)
            yield number, where, filled
    if is_inexact(array):
        largest = min(_LARGE, float(ml_dtypes.finfo(array.dtype).max) ** (1 / 3))  # type: ignore[no-untyped-call]
        yield "large", _ALL, (array.astype(np.float64) * largest).astype(array.dtype)


def _indices(array: Array) -> dict[str, Any]:
    """Return the index of each place in `array`, by the name of the place."""
    indices: dict[str, Any] = {_ALL: ...}
    if array.ndim > 1 and array.size > array.shape[-1]:
        indices[_ROW] = (0,) * (array.ndim - 1)
        size = array.shape[-2]
        step = -(-size // _VECTORS)
        indices |= {f"{_VECTOR} {at} of axis {array.ndim - 2}": (..., at, slice(None)) for at in range(0, size, step)}
    if array.size > 1:
        indices[_ONE] = (-1,) * array.ndim
    return indices


def _shuffled(array: Array, random: np.random.Generator) -> Array:
    """Return `array` with its elements in another order, and floats with other signs."""
    other = random.permutation(array.ravel()).reshape(array.shape)
    return np.where(random.random(array.shape) < 1 / 2, -other, other) if is_inexact(array) else other


def _scattered(array: Array, random: np.random.Generator) -> tuple[str, str, Array]:
    """Return a number at an edge, and `array` with it in all elements, at an index of an axis, in some elements, or in one."""
    numbers = _numbers(array.dtype)
    among = [number for number in numbers if number not in _SMALL]
    number = among[int(random.integers(len(among)))]
    kind = int(random.integers(4))
    chosen: Array = np.ones(array.shape, bool)
    if kind == 1 and array.ndim:
        axis = int(random.integers(array.ndim))
        chosen = np.moveaxis(np.zeros(array.shape, bool), axis, 0)
        chosen[random.integers(len(chosen))] = True
        chosen = np.moveaxis(chosen, 0, axis)
    elif kind == 2:
        chosen = np.less(random.random(array.shape), _SHARE)
    elif kind == 3:
        chosen = np.eye(1, array.size, int(random.integers(array.size)), dtype=bool).reshape(array.shape)
    where = _ALL if kind == 0 else _SOME
    return number, where, np.where(chosen, np.asarray(numbers[number]).astype(array.dtype), array)


def _numbers(dtype: np.dtype[Any]) -> dict[str, Any]:
    """Return the numbers at the edges of an element type, by name; none for integers that count or index."""
    if dtype == np.bool_:
        return {"false": False, "true": True}
    if dtype in (np.int8, np.uint8):
        low, high = np.iinfo(dtype).min, np.iinfo(dtype).max
        return {"lowest": low, "highest": high, "middle": (low + high + 1) // 2}
    if not is_inexact(np.empty(0, dtype)) or dtype.kind == "c":
        return {}
    bounds = ml_dtypes.finfo(dtype)  # type: ignore[no-untyped-call]
    return {
        **{"0": 0.0, "-0": -0.0, "denormal": bounds.smallest_subnormal, "tiny": bounds.smallest_normal},
        **{"+inf": np.inf, "-inf": -np.inf, "NaN": np.nan, "huge": bounds.max, "-huge": bounds.min},
    }


def _example(expected: Array, got: Array) -> dict[str, Any]:
    """Return how many elements differ, and the one that differs most: one that is finite in one of both only, if there is any."""
    if expected.shape != got.shape:
        return {"refused": f"the shape {list(expected.shape)} becomes {list(got.shape)}"}
    before, after = expected.astype(np.float64), got.astype(np.float64)
    finite = np.isfinite(before), np.isfinite(after)
    comparable = (finite[0] & finite[1]) | (before == after) | (np.isnan(before) & np.isnan(after))
    off = np.where(comparable, np.abs(np.where(finite[0], before, 0) - np.where(finite[1], after, 0)), np.inf)
    lost = finite[0] & ~finite[1]
    index = tuple(int(i) for i in np.unravel_index(int(np.argmax(lost if lost.any() else off)), expected.shape))
    where = ElementError(index, str(expected[index]), str(got[index]))
    return {"elements": int((off > 0).sum()), "where": where}


def _badness(effect: EdgeEffect) -> int:
    return list(EdgeEffect).index(effect)
