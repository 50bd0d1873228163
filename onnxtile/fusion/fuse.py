"""Contraction: matches and islands become calls of local functions, in one graph after the other."""

from __future__ import annotations

from collections.abc import Callable, Collection, Container, Iterable, Mapping, Sequence
from dataclasses import field, replace
from itertools import takewhile
from typing import TypeAlias

import onnx_ir as ir

from onnxtile.declare.verb import JsonFields
from onnxtile.fusion.float_view import QUANTISED_OPERATORS, FloatView, float_view, has_quantised_operators, scales_of
from onnxtile.fusion.island_rule import IslandRule
from onnxtile.fusion.islands import island_region, islands, overwritten
from onnxtile.fusion.metaop import (
    OPSET_VERSION,
    Functions,
    FusedRegion,
    Refusal,
    Unified,
    overwritable,
    region,
    region_through,
)
from onnxtile.fusion.pattern import Pattern, pattern_set, set_names
from onnxtile.fusion.record import (
    ConstantRecord,
    History,
    Past,
    Record,
    fused_calls,
    hand_on,
    note_place,
    of_node,
    of_tensor,
    of_value,
    past_of,
    write_past,
)
from onnxtile.model import keys
from onnxtile.model.constants import Constants, constant_attribute
from onnxtile.model.modules import ModulePath, dotted, module_note, module_path, shared_path
from onnxtile.model.node_kinds import dequantises, is_quantised, quantises
from onnxtile.model.opset import Opsets
from onnxtile.model.save import raise_ir_version
from onnxtile.model.topology import TopologicalOrder, is_read, node_id
from onnxtile.query.graph import Vertex, identify
from onnxtile.query.match import Match, Matcher, with_rivals
from onnxtile.query.names import require_known
from onnxtile.shapes.contributed import fits_in_function
from onnxtile.shapes.resolve import Shapes
from onnxtile.system.dataclass import dataclass
from onnxtile.system.errors import ModelError, PatternError, QueryError
from onnxtile.system.interpreter import collector_paused
from onnxtile.system.long_work import Progress, counted, silent

# The outcome of a pattern: the fate of each match, and the calls that were made.

FUSED, REFUSED, OVERLAPPED = "fused", "refused", "overlapped"
"""The fates of a match."""


@dataclass(frozen=True)
class Refused(JsonFields):
    """A match that was not fused: the name of its root, and the reason.

    `root` is that name, `reason` a sentence.
    """

    root: str
    reason: str


@dataclass(frozen=True)
class Fate(JsonFields):
    """What became of one match: it is "fused", "refused", or "overlapped" by another match of its pattern, with which it shares a node.

    `variant` counts from 1; `detail` is the name of the call, the reason, or which match it is and what became of that one. `fate` is that
    word, `root` the name of the match's root, and `vertices` are its nodes and constants.
    """

    JSON = "root variant fate detail"

    root: str
    variant: int
    fate: str
    detail: str
    vertices: tuple[Vertex, ...] = field(default=(), repr=False, compare=False)


@dataclass(frozen=True)
class PatternResult(JsonFields):
    """What one pattern did: how often it matched, the names of the calls it made, and the matches it had to leave alone.

    `fates` has every match. `name` is that of the pattern and `matches` a number. `calls` are the names of the nodes that call the meta-op,
    `refused` the matches left alone. `modules` are the modules around the calls as the exporter wrote them, such as "blocks.0.attn".
    `already` counts by operator the nodes that do the work of the whole meta-op by themselves.
    """

    JSON = "name matches fused calls modules refused already overlapped"

    name: str
    matches: int
    calls: tuple[str, ...]
    refused: tuple[Refused, ...] = ()
    fates: tuple[Fate, ...] = field(default=(), repr=False)
    modules: tuple[str, ...] = ()
    already: Mapping[str, int] = field(default_factory=dict)

    @property
    def fused(self) -> int:
        """How many calls were made."""
        return len(self.calls)

    @property
    def overlapped(self) -> int:
        """How many matches share a node with another match, which was longer or came first."""
        return sum(fate.fate == OVERLAPPED for fate in self.fates)


Site: TypeAlias = tuple[str, str]
"""A place where a meta-op may stand: the name of the meta-op, and that of its first result."""


_CYCLE = "a path leaves it and comes back: as one node it would be part of a cycle"


def _graph_of(part: FusedRegion) -> ir.Graph:
    graph = part.nodes[0].graph
    assert isinstance(graph, ir.Graph)
    return graph


@dataclass
class _Places:
    """Where each node and each initializer of one graph stood in the file, and the order of its nodes as it is now."""

    order: TopologicalOrder
    original: dict[ir.Node, int]
    initializers: dict[ir.Value, int]


@dataclass(frozen=True)
class _NewCall:
    """A call that was made, the function it calls at first, the constants in that, and the number of its record."""

    call: ir.Node
    function: ir.Function
    constants: tuple[ir.Value, ...]
    record: int


@dataclass
class Fuser:
    """Contracts the matches of patterns in `model`, in place."""

    model: ir.Model
    shapes: Callable[[], Shapes] | None = None
    left_out: Container[Site] = ()
    constants: Constants = field(init=False)
    places: dict[ir.Graph, _Places] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        self.ir_version = self.model.ir_version
        self.inputs = list(self.model.graph.inputs)
        self.constants = Constants(self.model)
        self.had_domain = keys.DOMAIN in self.model.graph.opset_imports
        raise_ir_version(self.model)
        past = _past(self.model)
        self.history, self.records, self.recorded = past.history, list(past.records), len(past.records)
        self.run = len(self.history) + 1
        self.functions = Functions(self.model)
        self.versions = Opsets(self.model)
        users = [f for f in self.model.functions.values() if keys.META_OP not in f.metadata_props]
        self.users = {graph: f for f in users for graph in (f.graph, *f.subgraphs())}
        self.importing: list[tuple[str, str, str]] = []
        self.matcher = Matcher(self.model, self.constants, self.functions.bodies, self.shapes)
        self.names = {node.name for graph in (*self.model.graphs(), *self.users) for node in graph}
        self.counts: dict[str, int] = {}
        self.new_calls: list[_NewCall] = []

    def apply(self, pattern: Pattern) -> PatternResult:
        """Contract the matches of one pattern, and return what became of each."""
        single = ((program, len(self.matcher.find(program))) for program in pattern.operators)
        already = {program.roots[0].type: count for program, count in single if count}
        fates = [] if pattern.island is None else self._islands(pattern, pattern.island)
        for i, program in enumerate(pattern.programs):
            with pattern.located(i):
                matches = self.matcher.find(program)
            new_fates = self._variant(matches, i + 1, pattern)
            fates += new_fates
            if any(fate.fate == FUSED for fate in new_fates):
                self.matcher.refresh()
        self.unify()
        done = [fate for fate in fates if fate.fate == FUSED]
        calls, modules = tuple(fate.detail for fate in done), tuple(dotted(_path_of(fate.vertices)) for fate in done)
        refused = tuple(Refused(fate.root, fate.detail) for fate in fates if fate.fate == REFUSED)
        return PatternResult(pattern.name, len(fates), calls, refused, tuple(fates), modules, already)

    def _islands(self, pattern: Pattern, rule: IslandRule) -> list[Fate]:
        """Contract the quantised islands of all graphs, and return what became of each."""
        fates = []
        for graph in list(self.model.graphs()) if is_quantised(self.model) else ():
            for island in list(islands(self.model, graph, rule, self.constants, self._sizes)):
                part = island_region(island)
                kind = replace(pattern, name=island.name, doc=f"{pattern.doc} Operator: {island.name[1:]}.")
                outcome = self.contract_region(part, kind, overwritten(island, part, rule), island.marks)
                fate, detail = (FUSED, node_id(outcome)) if isinstance(outcome, ir.Node) else (REFUSED, outcome.reason)
                fates.append(Fate(node_id((island.operators or island.nodes)[0]), 1, fate, detail, island.nodes))
        if fates:
            self.matcher.refresh()
        return fates

    def _sizes(self, value: ir.Value) -> Sequence[int] | None:
        """Return the sizes of `value`, or of what it quantises, as the file says them, else as inferred; None where one is open."""
        maker = value.producer()
        if (quantises(maker) or dequantises(maker)) and maker is not None and maker.inputs[0] is not None:
            return self._sizes(maker.inputs[0])
        dims: tuple[object, ...] = () if value.shape is None else tuple(value.shape)
        if value.shape is None or not value.shape.is_static():
            dims = tuple(self.matcher.dims(value) or (None,))
        sizes = [size for size in dims if isinstance(size, int)]
        return sizes if len(sizes) == len(dims) else None

    def _variant(self, matches: Iterable[Match], variant: int, pattern: Pattern) -> list[Fate]:
        """Contract the matches of one variant that share no node, and return what became of each."""
        done: dict[int, Fate] = {}
        ranked = [(match, rival, identify(match.root)) for match, rival in with_rivals(matches, self.constants)]
        for match, rival, root in ranked:
            if rival is match:
                done[id(match)] = Fate(root, variant, REFUSED, "it has nothing but constants", match.vertices)
            elif rival is not None:
                done[id(match)] = Fate(
                    root, variant, OVERLAPPED, _overlap(match, rival, done[id(rival)]), match.vertices
                )
            else:
                outcome = self._contract(match, pattern)
                fate, detail = (REFUSED, outcome.reason) if isinstance(outcome, Refusal) else (FUSED, outcome)
                done[id(match)] = Fate(root, variant, fate, detail, match.vertices)
        return list(done.values())

    def finish(self) -> None:
        """Leave on the model what unfuse needs, if anything was fused; else leave the model as it was."""
        listed = len(self.inputs) > len(self.model.graph.inputs)
        if len(self.records) == self.recorded:
            self.model.ir_version = self.ir_version
            if listed:
                self.model.graph.inputs[:] = self.inputs
            return
        inputs = tuple(value.name or "" for value in self.inputs) if listed else None
        this = History(self.run, self.ir_version, self.had_domain, inputs, tuple(self.importing))
        write_past(self.model, Past((*self.history, this), tuple(self.records)))

    def _contract(self, match: Match, pattern: Pattern) -> str | Refusal:
        part = region([*match.nodes, *self.matcher.unchanged.between(match.nodes)], self.constants)
        if isinstance(part, Refusal):
            return part
        if pattern.outputs is not None and len(part.outputs) > pattern.outputs:
            names = ", ".join(repr(value.name) for value in part.outputs)
            return Refusal(f"{names} are read outside; the pattern allows {pattern.outputs} of its values to be")
        over = overwritable(part, match, pattern.in_place)
        call = self._put(part, pattern, over)
        return node_id(call) if isinstance(call, ir.Node) else call

    def _put(self, part: FusedRegion, pattern: Pattern, over: Sequence[int]) -> ir.Node | Refusal:
        """Put a call in the place of what a match is, and return it."""
        return self.contract_region(part, pattern, over)

    def contract_region(
        self, part: FusedRegion, pattern: Pattern, over: Sequence[int], marks: Iterable[str] = ()
    ) -> ir.Node | Refusal:
        """Put a call in the place of the nodes of `part`, and return it; `over` and `marks` say what its kernel may do."""
        if not part.outputs:
            return Refusal("no node reads a result of it")
        if (pattern.name, part.outputs[0].name) in self.left_out:
            return Refusal("as one kernel it makes the arena larger")
        graph = _graph_of(part)
        versions = self.versions.opsets_of(graph)
        misfit = next((node for node in part.nodes if not fits_in_function(node, versions)), None)
        if misfit is not None:
            return Refusal(
                f"{misfit.op_type} is not in this opset of ONNX, and onnxruntime refuses it inside a function"
            )
        places = self._places(graph)
        after = places.order.between(part.leaving, part.copied)
        if after is None:
            return Refusal(_CYCLE)
        function = self.functions.function_of(part, pattern, self._opsets(graph), over)
        function.metadata_props.update(dict.fromkeys(marks, ""))
        self.model.graph.opset_imports[keys.DOMAIN] = (
            OPSET_VERSION  # from the first call on: a test may have shapes inferred
        )
        call = self._call(part, function, places)
        for node in after:
            position = places.original.get(node)
            if position is not None:
                note_place(node, self.run, position)
        self._replace(part, call, places.order, after)
        self.new_calls.append(_NewCall(call, function, part.constants, len(self.records) - 1))
        return call

    def unify(self) -> None:
        """Let the calls that one pattern made share functions where they differ in single numbers only, and drop constants inside."""
        unified = self.functions.unified()
        for entry in self.new_calls:
            function, differing = unified.get(entry.function, Unified(entry.function, ()))
            record = self.records[entry.record]
            assert record is not None
            count = len(entry.call.inputs)
            entry.call.op_type = function.name
            entry.call.resize_inputs(count + len(differing))
            for position, index in enumerate(differing, count):
                entry.call.replace_input_with(position, entry.constants[index])
            inside = tuple(c for i, c in enumerate(record.constants) if i not in differing)
            self.records[entry.record] = replace(record, body=self.functions.digest(function), constants=inside)
        for value in dict.fromkeys(value for entry in self.new_calls for value in entry.constants):
            self._drop(value)
        self.new_calls.clear()

    def _opsets(self, graph: ir.Graph) -> dict[str, int]:
        """Return the imports with which `graph` is read; a function of the user's has its own, and may lack that of meta-ops."""
        function = self.users.get(graph)
        if function is None:
            return dict(self.model.graph.opset_imports)
        if keys.DOMAIN not in function.opset_imports:
            function.opset_imports[keys.DOMAIN] = OPSET_VERSION
            self.importing.append(function.identifier())
        return dict(function.opset_imports)

    def _places(self, graph: ir.Graph) -> _Places:
        if graph not in self.places:
            initializers = {value: position for position, value in enumerate(graph.initializers.values())}
            original = {node: position for position, node in enumerate(graph)}
            self.places[graph] = _Places(TopologicalOrder(graph), original, initializers)
        return self.places[graph]

    def _call(self, part: FusedRegion, function: ir.Function, places: _Places) -> ir.Node:
        nodes = tuple(
            of_node(node, places.original.get(node), self.run, copied=part.may_be_copied(node)) for node in part.nodes
        )
        constants = tuple(self._constant_record(value, places) for value in part.constants)
        record = Record(self.run, "", nodes, constants)
        outputs = [ir.Value() for _ in part.outputs]
        for old, new in zip(part.outputs, outputs, strict=True):
            hand_on(old, new)
            self.matcher.replaced(old, new)
        name = self._unique(f"{_common_path(part.nodes) or f'{part.outputs[0].name}/'}{keys.meta_op(function.name)}")
        metadata = {keys.FUSED: str(len(self.records)), **module_note(_path_of(part.nodes), name)}
        self.records.append(record)
        return ir.Node(
            keys.DOMAIN,
            function.name,
            part.inputs,
            overload=function.overload,
            outputs=outputs,
            name=name,
            metadata_props=metadata,
        )

    def _constant_record(self, value: ir.Value, places: _Places) -> ConstantRecord:
        node = value.producer()
        if node is not None:
            return ConstantRecord(of_value(value), of_node(node, places.original.get(node), self.run))
        tensor = of_tensor(constant_attribute(value).value)
        return ConstantRecord(of_value(value), tensor=tensor, place=places.initializers.get(value))

    def _unique(self, name: str) -> str:
        candidate, count = name, self.counts.get(name, 1)
        while candidate in self.names:
            count += 1
            candidate = f"{name}_{count}"
        self.counts[name] = count
        self.names.add(candidate)
        return candidate

    def _replace(self, part: FusedRegion, call: ir.Node, order: TopologicalOrder, after: set[ir.Node]) -> None:
        names, members = [value.name for value in part.outputs], part.leaving
        order.contract(members, call, after)
        for old, new in zip(part.outputs, call.outputs, strict=True):
            old.replace_all_uses_with(new, replace_graph_outputs=True)
        graph = call.graph
        assert isinstance(graph, ir.Graph)
        graph.remove(reversed(members), safe=True)
        for old, new, name in zip(part.outputs, call.outputs, names, strict=True):
            old.name = None
            new.name = name

    def _drop(self, value: ir.Value) -> None:
        """Remove a constant that nothing reads any more."""
        if is_read(value):
            return
        node, graph = value.producer(), value.graph
        assert isinstance(graph, ir.Graph)
        if node is not None:
            graph.remove(node, safe=True)
        elif not value.is_graph_input():
            graph.initializers.pop(value.name or "", None)


# The float view of a quantised model is searched; what is found there is contracted in both.


@dataclass
class ViewFuser(Fuser):
    """Contracts the matches in the float `view` of a model; `outer` contracts in the model what each of them stands for."""

    view: FloatView = field(kw_only=True)
    outer: Fuser = field(kw_only=True)

    def _put(self, part: FusedRegion, pattern: Pattern, over: Sequence[int]) -> ir.Node | Refusal:
        """Contract in the model what `part` stands for, and what quantises and dequantises between; then `part` in the view."""
        if self._places(_graph_of(part)).order.between(part.leaving, part.copied) is None:
            return Refusal(_CYCLE)
        original = self._original(part)
        if isinstance(original, Refusal):
            return original
        if pattern.outputs is not None and len(original.outputs) > pattern.outputs:
            return Refusal("more of its values are read outside, as they are or quantised, than the pattern allows")
        repeated = self.outer.contract_region(original, pattern, over if _are_alike(original, part) else ())
        if isinstance(repeated, ir.Node):
            call = self.contract_region(part, pattern, over)
            assert isinstance(call, ir.Node)
            self.view.originals[call] = (repeated,)
        return repeated

    def _original(self, part: FusedRegion) -> FusedRegion | Refusal:
        """Return the region of the model that `part` stands for."""
        members: dict[ir.Node, None] = {}
        for node in part.nodes:
            members |= dict.fromkeys(self.view.originals[node])
        whole = (piece for node in members for piece in self.view.parts.get(node, ()))
        if any(piece not in part.nodes for piece in whole):
            return Refusal("it ends inside an operator")
        return region_through(list(members), self.outer.constants)


def _are_alike(original: FusedRegion, part: FusedRegion) -> bool:
    """Return whether the first inputs of `original` are those of `part`, so that their places say the same; scales come after them."""
    scales = {value for node in original.nodes for value in scales_of(node)}
    operands = [value for value in original.inputs if value not in scales]
    return len(original.nodes) == len(part.nodes) and len(operands) == len(part.inputs)


def _overlap(match: Match, rival: Match, fate: Fate) -> str:
    """Say which `rival` has a node of `match`, and what became of that one."""
    same = set(match.vertices) == set(rival.vertices)
    shares = "has the same nodes" if same else f"has {len(set(match.vertices) & set(rival.vertices))} of its nodes"
    became = f"became {fate.detail!r}" if fate.fate == FUSED else f"was refused: {fate.detail}"
    return f"the match at {fate.root!r} {shares}, and {became}"


def _past(model: ir.Model) -> Past:
    """Return the records of earlier runs of fuse on `model`. Raises ModelError where that is damaged, or a call has none."""
    try:
        past = past_of(model)
        past.only(fused_calls(model))
        return past
    except ValueError:
        raise ModelError("the model was fused before, and the record of that is damaged") from None


def _path_of(vertices: Iterable[Vertex]) -> ModulePath:
    """Return the modules around all nodes among `vertices`."""
    nodes = (vertex for vertex in vertices if isinstance(vertex, ir.Node) and vertex.op_type != "Constant")
    return shared_path(module_path(node.name, node.metadata_props) for node in nodes)


def _common_path(nodes: Collection[ir.Node]) -> str:
    """Return the path that the names of `nodes` share, with its separator: exporters name nodes after modules."""
    paths = [node.name.split("/")[:-1] for node in nodes if node.name]
    shared = [parts[0] for parts in takewhile(lambda parts: len(set(parts)) == 1, zip(*paths, strict=False))]
    return "".join(f"{part}/" for part in shared)


# Fusion: each match of a pattern becomes a call of a local function, in place.


@collector_paused()
def fuse(
    model: ir.Model,
    patterns: Iterable[Pattern],
    progress: Progress = silent,
    shapes: Callable[[], Shapes] | None = None,
    *,
    through: bool = False,
    left_out: Container[Site] = (),
) -> list[PatternResult]:
    """Fuse `model` in place with one pattern after the other; later patterns may name the meta-ops of earlier ones.

    With `through`, queries see the float operators of a quantised model without the nodes that quantise or dequantise between them. Where
    one query names such an operator, all see the nodes as they are. Matches have the nodes as they are.

    Of overlapping matches the longest counts. A match is refused where contracting it would make a cycle, or where nodes outside read more
    of its values than the pattern allows. So is one whose nodes a function cannot hold. `shapes` returns those of `model` as it is now,
    when a test first needs them; without it they are inferred. Sites in `left_out` are refused.
    """
    return FusionRun(model, patterns, shapes, through=through, left_out=left_out).apply(progress)


class FusionRun:
    """One run of `fuse`, and the graphs in which it looks for matches: the model, or its float view."""

    def __init__(
        self,
        model: ir.Model,
        patterns: Iterable[Pattern],
        shapes: Callable[[], Shapes] | None = None,
        *,
        through: bool = False,
        left_out: Container[Site] = (),
    ) -> None:
        self._patterns = list(patterns)
        _require_known(model, self._patterns)
        self._fuser = Fuser(model, shapes, left_out=left_out)
        types = {name.rpartition("::")[2] for pattern in self._patterns for name in pattern.needs()}
        named = bool(types & QUANTISED_OPERATORS)
        seen_through = through and not named and has_quantised_operators(model)
        self._finder = _finder(self._fuser) if seen_through else self._fuser

    @property
    def matcher(self) -> Matcher:
        """The matcher of what is searched, as it is now."""
        return self._finder.matcher

    def apply(self, progress: Progress = silent) -> list[PatternResult]:
        """Fuse the model with one pattern after the other, in place."""
        results = []
        for pattern in counted(self._patterns, "matching", progress):
            results.append((self._fuser if pattern.island else self._finder).apply(pattern))
            self._fuser.unify()
        self._fuser.finish()
        return results


def _require_known(model: ir.Model, patterns: Collection[Pattern]) -> None:
    """Raise QueryError, or PatternError for a query in a file, for an operator that nothing can make: a typo."""
    others = [pattern for pattern in patterns if not pattern.is_shipped]
    if not others:
        return
    known = {node.op_type for graph in model.graphs() for node in graph} | {pattern.name for pattern in patterns}
    known |= {node.op_type for function in model.functions.values() for node in function}
    try:
        _require_known_in(others, known)
    except (QueryError, PatternError):
        known |= {pattern.name for name in set_names() for pattern in pattern_set(name)}
        _require_known_in(others, known)


def _require_known_in(patterns: Iterable[Pattern], known: Collection[str]) -> None:
    for pattern in patterns:
        for i, program in enumerate(pattern.programs):
            with pattern.located(i):
                require_known(program.query, known)


def _finder(fuser: Fuser) -> Fuser:
    """Return a fuser that finds matches for `fuser` in the float view of its model."""
    view, known = float_view(fuser.model, fuser.constants), fuser.shapes
    shapes = None if known is None else lambda: view.shapes(known())
    return ViewFuser(view.model, shapes, view=view, outer=fuser)
