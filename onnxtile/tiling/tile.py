"""Tiles every contraction of a model: finds them all, refuses too many nodes, then writes each node as its tiles, in its place."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from functools import cached_property, partial
from itertools import chain, count

import numpy as np
import onnx_ir as ir

from onnxtile.model import keys
from onnxtile.model.binding import Unbound, free_inputs
from onnxtile.model.constants import constant_array, prune
from onnxtile.model.functions import add_function, constant_node, free_function, read_from_outside
from onnxtile.model.graph_writer import ConstantReader, Names
from onnxtile.model.modules import dotted, module_note, module_path
from onnxtile.model.opset import opset_of
from onnxtile.model.save import raise_ir_version
from onnxtile.model.topology import all_nodes, called_functions, is_read, nodes_in
from onnxtile.operators.node_view import Dim, Dims, KnownConstants, NoConstants, NotApplicable, ReasonCode
from onnxtile.operators.table import Left, operator_of
from onnxtile.shapes.infer import values
from onnxtile.shapes.propagation import Propagation
from onnxtile.shapes.resolve import Shapes, resolve
from onnxtile.system.dataclass import dataclass
from onnxtile.system.errors import Infeasible, ModelError, UsageError, unknown
from onnxtile.system.interpreter import collector_paused
from onnxtile.system.long_work import Progress, counted, silent
from onnxtile.system.registry import discover
from onnxtile.system.runtime import Array
from onnxtile.tiling.blocks import BlockCache
from onnxtile.tiling.choose import MOST_NODES, Candidate, TileSite, choose, examine, with_quantized
from onnxtile.tiling.contraction import (
    FIRST_OPSET,
    Contraction,
    FreeAt,
    Tileable,
    TilingFacts,
    none_known,
)
from onnxtile.tiling.experts import ExpertSite, cut_experts, find_experts
from onnxtile.tiling.limits import SUM_TYPES, Limits, TilingPolicy
from onnxtile.tiling.operators import island_of
from onnxtile.tiling.result import SkippedNode, TiledNode, TileResult
from onnxtile.tiling.write import most_nodes, write_tiles
from onnxtile.tiling.writer import SCATTER_OPSET, Writer, fitting, keeps_copies, scatters
from onnxtile.verification.rounding import HALVES

# Shapes inside local functions: the sizes that their call sites agree on, and the small constants that these give.

_IR_VERSION = 10
_MOST = 64
"""Most elements of a constant that may decide shapes: the inputs of Reshape, Slice, Split or Expand have about one an axis."""
Signature = tuple[tuple[ir.DataType | None, Dims | None] | None, ...]
"""Element type and dimensions of each input of a call; None for one that is left out."""


@dataclass(frozen=True)
class FunctionShapes:
    """The shapes of the values of one function, as all its calls see them."""

    shapes: Shapes
    given: Mapping[ir.Value, Array]
    """The elements of the inputs that are the same small constant in all calls."""


class FunctionTable:
    """The bodies of a model's functions; each is inferred once, after those that call it."""

    def __init__(self, model: ir.Model, shapes: Shapes, constants: KnownConstants) -> None:
        self._model = model
        self._shapes = shapes
        self._constants = constants
        self._known: dict[ir.OperatorIdentifier, FunctionShapes | NotApplicable] = {}
        self._callers: dict[ir.Value, ir.OperatorIdentifier] = {}
        # A dict stands for a set that keeps its order: a call is taken out in constant time.
        self._calls: dict[ir.OperatorIdentifier, dict[ir.Node, None]] = defaultdict(dict)
        for node in all_nodes(model):
            self._calls[node.op_identifier()][node] = None
        for function in model.functions.values():
            self._register(function)

    def add(self, function: ir.Function, calls: Sequence[ir.Node]) -> None:
        """Take up `function`, a new copy of one in the model that `calls` call now instead of that."""
        self._model.functions[function.identifier()] = function
        self._register(function)
        for node in function.all_nodes():
            self._calls[node.op_identifier()][node] = None
        for call in calls:
            del self._calls[call.op_identifier()][call]
            call.op_type = function.name
            self._calls[call.op_identifier()][call] = None

    def calls(self, function: ir.Function) -> dict[Signature, list[ir.Node]]:
        """Return the calls of `function` by the sizes of their inputs. Raises NotApplicable where nothing is known of a caller."""
        calls_by_size: dict[Signature, list[ir.Node]] = defaultdict(list)
        for call in self._calls[function.identifier()]:
            calls_by_size[self._signature(call, len(function.inputs))].append(call)
        return calls_by_size

    def shapes_of(self, function: ir.Function) -> Shapes:
        """Return the shapes inside `function`. Raises NotApplicable with the reason where its calls do not decide them."""
        return self._inside(function).shapes

    def _inside(self, function: ir.Function) -> FunctionShapes:
        """Return the shapes inside `function`. Raises NotApplicable with the reason where its calls do not decide them."""
        key = function.identifier()
        if key not in self._known:
            try:
                self._known[key] = self._infer(function)
            except NotApplicable as reason:
                self._known[key] = reason
        body = self._known[key]
        if isinstance(body, NotApplicable):
            inside = f"it is inside the local function {function.domain}::{function.name}"
            raise NotApplicable(f"{inside}, {body}", body.code)
        return body

    def _register(self, function: ir.Function) -> None:
        self._callers |= dict.fromkeys(_values(function), function.identifier())

    def _infer(self, function: ir.Function) -> FunctionShapes:
        if function.attributes:
            raise NotApplicable("which has attributes")
        calls = self.calls(function)
        if not calls:
            raise NotApplicable("which is called nowhere")
        if len(calls) > 1:
            raise NotApplicable("whose calls have different sizes")
        ((signature, nodes),) = calls.items()
        return _inferred(self._model, function, signature, self._given(nodes, len(function.inputs)))

    def _signature(self, call: ir.Node, count: int) -> Signature:
        inputs = [*call.inputs, *[None] * (count - len(call.inputs))]
        return tuple(None if value is None else self._fact(value) for value in inputs)

    def _fact(self, value: ir.Value) -> tuple[ir.DataType | None, Dims | None]:
        caller = self._callers.get(value)
        table: Shapes = self._shapes if caller is None else self.shapes_of(self._model.functions[caller])
        return table.dtype(value), table.dims(value)

    def _given(self, calls: Sequence[ir.Node], count: int) -> list[Array | None]:
        """Return for each input of a function the small constant that all its calls give, None where they differ or give another value."""
        given: list[Array | None] = []
        for index in range(count):
            arrays = [self._constant_of(call.inputs[index]) if index < len(call.inputs) else None for call in calls]
            same = all(
                array is not None and arrays[0] is not None and np.array_equal(array, arrays[0]) for array in arrays
            )
            given.append(arrays[0] if same else None)
        return given

    def _constant_of(self, value: ir.Value | None) -> Array | None:
        """Return the elements of a value that is a constant of few integers."""
        dtype, dims = (None, None) if value is None else self._fact(value)
        if value is None or dtype not in {ir.DataType.INT64, ir.DataType.INT32} or dims is None or len(dims) > 1:
            return None
        if any(not isinstance(size, int) or size > _MOST for size in dims):
            return None
        if value in self._constants:
            return self._constants.array(value)
        caller, node = self._callers.get(value), value.producer()
        if caller is None:
            return self._computed.number(value)
        if node is None:
            return self._inside(self._model.functions[caller]).given.get(value)
        return constant_array(node) if node.op_type == "Constant" else None

    @cached_property
    def _computed(self) -> Propagation:
        """The few numbers that the main graph computes from shapes."""
        known = [(value, self._shapes.dtype(value), self._shapes.dims(value)) for value in values(self._model)]
        dtypes = {value: dtype for value, dtype, _ in known if dtype is not None}
        numbers = Propagation(self._model, dtypes, {value: dims for value, _, dims in known if dims is not None})
        numbers.run()
        return numbers


def _inferred(
    model: ir.Model, function: ir.Function, signature: Signature, given: Sequence[Array | None]
) -> FunctionShapes:
    """Infer the body of `function` as a graph whose inputs have the sizes of its calls; constants that these give are constants there."""
    copy = function.clone()
    stand_ins = dict(zip(_values(function), _values(copy), strict=True))
    held = {value: array for value, array in zip(function.inputs, given, strict=True) if array is not None}
    for value, fact in zip(list(copy.inputs), signature, strict=True):
        if fact is None or fact[0] is None:
            raise NotApplicable(f"of whose input {value.name!r} nothing is known", ReasonCode.UNKNOWN_SIZE)
        value.type = ir.TensorType(fact[0])
        value.shape = None if fact[1] is None else ir.Shape(fact[1])
    for value, array in held.items():
        inside = stand_ins[value]
        copy.graph.inputs.remove(inside)
        inside.const_value = ir.tensor(array, name=inside.name)
        copy.graph.register_initializer(inside)
    functions = [other.clone() for other in called_functions(nodes_in(function), model)]
    shell = ir.Model(copy.graph, ir_version=_IR_VERSION, functions=functions)
    return FunctionShapes(_resolved(shell).of_copies({copied: value for value, copied in stand_ins.items()}), held)


def _resolved(shell: ir.Model) -> Shapes:
    """Return the shapes of a body, from a run where inference is not enough and onnxruntime has the operators."""
    try:
        return resolve(shell, run=True)
    except ModelError:
        pass
    try:
        return resolve(shell)
    except ModelError as error:
        raise NotApplicable(f"whose shapes cannot be inferred: {error.message}", ReasonCode.UNKNOWN_SIZE) from None


def _values(function: ir.Function) -> Iterator[ir.Value]:
    yield from function.inputs
    for node in function:
        yield from node.outputs


# A local function whose calls have different sizes becomes one for each, since each of them is cut differently.
#
# Copies get numbers, like meta-ops with different bodies: Linear, Linear.2, Linear.3 ...


class FunctionCopies:
    """The functions of a model that have been copied, one for each size that they are called with."""

    def __init__(self, model: ir.Model, table: FunctionTable) -> None:
        self._model = model
        self._table = table
        self._made: dict[ir.OperatorIdentifier, list[ir.Function]] = {}

    def split(self, is_tileable: Callable[[ir.Node], bool]) -> None:
        """Give each size that a function with a tileable node somewhere inside is called with a copy of it."""
        functions = self._model.functions
        hosts = _reaching(self._model, is_tileable)
        for key in _callers_first(self._model):
            if key in hosts and not functions[key].attributes:
                self._split(functions[key])

    def merge(self) -> None:
        """Take back the copies that are still alike, innermost first: nothing in them was cut."""
        for original, copies in reversed(self._made.items()):
            kept: dict[tuple[object, ...], ir.Function] = {}
            for function in (self._model.functions[original], *copies):
                first = kept.setdefault(tuple((node.op_identifier(), node.name) for node in function), function)
                if first is not function:
                    self._replace(function, first)

    def _split(self, function: ir.Function) -> None:
        try:
            calls = self._table.calls(function)
        except NotApplicable:
            return
        for group in list(calls.values())[1:]:
            copy = _renamed_copy(function, self._free_name(function))
            self._table.add(copy, group)
            self._made.setdefault(function.identifier(), []).append(copy)

    def _free_name(self, function: ir.Function) -> str:
        stem, number = keys.meta_op(function.name), 2
        while (function.domain, f"{stem}.{number}", function.overload) in self._model.functions:
            number += 1
        return f"{stem}.{number}"

    def _replace(self, function: ir.Function, by: ir.Function) -> None:
        for node in all_nodes(self._model):
            if node.op_identifier() == function.identifier():
                node.op_type = by.name
        del self._model.functions[function.identifier()]


def _renamed_copy(function: ir.Function, name: str) -> ir.Function:
    """Return a copy of `function` called `name`."""
    copy = function.clone()
    attributes = list(copy.attributes.values())
    named = ir.Function(function.domain, name, function.overload, graph=copy.graph, attributes=attributes)
    named.metadata_props.update(function.metadata_props)
    named.doc_string = function.doc_string
    return named


def _callees(model: ir.Model, function: ir.Function) -> list[ir.OperatorIdentifier]:
    called = dict.fromkeys(node.op_identifier() for node in function.all_nodes())
    return [key for key in called if key in model.functions]


def _callers_first(model: ir.Model) -> list[ir.OperatorIdentifier]:
    """Return the functions, each after all functions that call it. Functions are not recursive."""
    done: dict[ir.OperatorIdentifier, None] = {}

    def visit(key: ir.OperatorIdentifier) -> None:
        if key in done:
            return
        for callee in _callees(model, model.functions[key]):
            visit(callee)
        done[key] = None

    for key in model.functions:
        visit(key)
    return list(reversed(done))


def _reaching(model: ir.Model, is_tileable: Callable[[ir.Node], bool]) -> set[ir.OperatorIdentifier]:
    """Return the functions that have a tileable node, or call one that has."""
    reaching: set[ir.OperatorIdentifier] = set()
    for key in reversed(_callers_first(model)):
        function = model.functions[key]
        nodes: Iterator[ir.Node] = iter(function.all_nodes())
        if any(is_tileable(node) or node.op_identifier() in reaching for node in nodes):
            reaching.add(key)
    return reaching


# The tiles of all nodes.


def reason_untiled(node: ir.Node) -> str | None:
    """Return why a node with products in it is left whole; None for any other."""
    row = operator_of(node)
    if row is None or not isinstance(row.contraction, Left):
        return None
    return f"tile does not cut {node.op_type}" + (f": {row.contraction.why}" if row.contraction.why else "")


@collector_paused()
def tile(
    model: ir.Model,
    limits: Limits,
    shapes: Shapes,
    constants: KnownConstants,
    options: TilingPolicy | None = None,
    progress: Progress = silent,
    *,
    free: FreeAt = none_known,
) -> TileResult:
    """Cut every tileable node of `model`, in place, into tiles within `limits`.

    `shapes`, `constants` and `free` describe the model as it comes in. Values keep their names, types and roles; constants that
    only the old nodes used are removed. The IR version becomes 10 at least where anything is tiled, for the marks on the
    nodes. A node that no tile within the limits can do is left as it is, unless the options are strict. Raises, before anything is
    changed, Infeasible where they are, or where all tiles need more nodes than allowed; UsageError for a node to skip that does not
    exist, or where more than `MOST_NODES` would be written and the options do not allow so many.
    """
    options = options or TilingPolicy()
    facts = TilingFacts(shapes, constants, opset_of(model), Unbound.from_inputs(free_inputs(model)), free)
    search = _Search.over(model, limits, facts, options)
    names, copies = search.names, FunctionCopies(model, search.table)
    copies.split(search.is_tileable)
    entries = choose(search.all(), options)
    mixtures = find_experts(model, limits, facts, names, options)
    _require_names(options.skip, [*entries, *mixtures])
    sites = [site for site in entries if isinstance(site, TileSite)]
    _refuse_explosion(sites, options, facts.opset)
    mixed = [site for site in mixtures if isinstance(site, ExpertSite)]
    _refuse_experts(mixed, options)
    for site in sites:
        # `free` describes the model as it is before the first of them is rewritten.
        keeps_copies(site.contraction, site.grid, facts.opset)
    if sites or mixed:
        raise_ir_version(model)
    # From the last node to the first: a constant that is the result of a product is read before that product is replaced.
    done: dict[ir.Node, TiledNode | SkippedNode] = {}
    writing = Writing(model, names, constants, options, bodies=frozenset(f.graph for f in model.functions.values()))
    for site in counted(sites[::-1], "tiling", progress):
        done[site.node] = rewrite(site, writing)
    experts = tuple(cut_experts(site, constants, names) for site in mixed)
    copies.merge()
    reported = [done[entry.node] if isinstance(entry, TileSite) else entry for entry in entries]
    return TileResult(
        tiled=tuple(entry for entry in reported if isinstance(entry, TiledNode)),
        skipped=tuple(entry for entry in (*reported, *mixtures) if isinstance(entry, SkippedNode)),
        experts=experts,
    )


def opset_to_join(
    model: ir.Model,
    limits: Limits,
    shapes: Shapes,
    constants: KnownConstants,
    options: TilingPolicy | None = None,
    *,
    free: FreeAt = none_known,
) -> int:
    """Return the first opset in which the tiles of `model` can be joined in place; the model's own where a Concat copies little, too.

    A model with local functions keeps its opset, since its functions have one of their own. The model is not changed. Raises as `tile`.
    """
    options, opset = options or TilingPolicy(), opset_of(model)
    if opset >= SCATTER_OPSET or model.functions:
        return opset
    facts = TilingFacts(shapes, constants, opset, Unbound.from_inputs(free_inputs(model)), free)
    entries = choose(_Search.over(model, limits, facts, options).all(), options)
    sites = (site for site in entries if isinstance(site, TileSite))
    return SCATTER_OPSET if any(scatters(site.contraction, site.grid, SCATTER_OPSET) for site in sites) else opset


def _require_names(names: Iterable[str], entries: Iterable[TileSite | ExpertSite | SkippedNode]) -> None:
    """Raise UsageError where one of `names` is not the name of a node that tile could cut."""
    known = {entry.node if isinstance(entry, SkippedNode) else entry.name for entry in entries}
    for name in names:
        if name not in known:
            raise unknown("node to skip", name, known)


@dataclass(frozen=True)
class _Search:
    """Looks at all nodes of a model, in its order, and changes nothing."""

    model: ir.Model
    limits: Limits
    facts: TilingFacts
    names: Names
    operators: Mapping[str, Tileable]
    table: FunctionTable
    options: TilingPolicy

    @classmethod
    def over(cls, model: ir.Model, limits: Limits, facts: TilingFacts, options: TilingPolicy) -> _Search:
        """Return the search over `model`, of which `facts` are known."""
        operators = discover("onnxtile.tiling.operators", Tileable)  # type: ignore[type-abstract]
        table = FunctionTable(model, facts.shapes, facts.constants)
        return cls(model, limits, facts, Names(model), operators, table, options)

    def is_tileable(self, node: ir.Node) -> bool:
        """Return whether a plug-in states the operator of `node` as a contraction."""
        operator = self.operators.get(node.op_type)
        return operator is not None and node.domain == operator.domain

    def all(self) -> Iterator[Candidate | SkippedNode]:
        """Yield the nodes that can be tiled, and the nodes that cannot, with the reason."""
        for node in self.model.graph.all_nodes():
            if self.is_tileable(node):
                yield self._examine(node, self.facts, self.names.name_of(node))
                continue
            reason = reason_untiled(node)
            if reason is not None:
                yield SkippedNode(self.names.name_of(node), reason, ReasonCode.UNSUPPORTED)
        for function in self.model.functions.values():
            for node in function.all_nodes():
                if self.is_tileable(node):
                    yield self._inside(node, function)

    def _inside(self, node: ir.Node, function: ir.Function) -> Candidate | SkippedNode:
        """Examine a node of a local function: all its inputs come from outside, with the sizes that the calls agree on."""
        overload = f":{function.overload}" if function.overload else ""
        name = f"{function.name}{overload}/{self.names.within(node)}"
        if function.opset_imports.get("", 0) != self.facts.opset:
            reason = f"it is inside {function.domain}::{function.name}, which has another opset"
            return SkippedNode(name, reason, ReasonCode.OPSET)
        try:
            facts = replace(self.facts, shapes=self.table.shapes_of(function), constants=NoConstants(), free=none_known)
        except NotApplicable as reason:
            return SkippedNode.because(name, reason)
        return self._examine(node, facts, name)

    def _examine(self, node: ir.Node, facts: TilingFacts, name: str) -> Candidate | SkippedNode:
        if facts.opset < FIRST_OPSET:
            reason = f"opset {facts.opset} is too old: raise the model to {FIRST_OPSET} at least"
            return SkippedNode(name, reason, ReasonCode.OPSET)
        if name in self.options.skip:
            return SkippedNode(name, "left out on request", ReasonCode.NOT_REQUESTED)
        limits = self.limits.of_operator(node.op_type)
        sizes: tuple[Dim, Dim, Dim] | None = None
        try:
            stated = island_of(node, facts) or self.operators[node.op_type].restate(node, facts)
            contraction: Contraction = replace(with_quantized(stated, limits), free=partial(facts.free, node))
            if contraction.dtype in HALVES and self.options.accumulate_type is not None:
                contraction = replace(contraction, sums=ir.DataType[SUM_TYPES[self.options.accumulate_type]])
            sizes = (contraction.m, contraction.k, contraction.n)
            return examine(name, node, contraction, limits, facts, self.options.way)
        except NotApplicable as reason:
            return SkippedNode.because(name, reason, sizes)
        except Infeasible as error:
            if self.options.strict:
                raise
            return SkippedNode(name, f"{error.message} ({error.hint})", ReasonCode.OVER_LIMITS, sizes)


def _refuse_explosion(sites: list[TileSite], options: TilingPolicy, opset: int) -> None:
    """Raise UsageError, with the limit to raise, where tiling would write more nodes than the options allow."""
    counts = [most_nodes(site.contraction, site.grid, options.way, opset) for site in sites]
    total = sum(counts)
    if total <= max(MOST_NODES, options.nodes_at_most or 0):
        return
    worst = sites[counts.index(max(counts))]
    raise UsageError(
        f"tiling would write {total:,} nodes, {max(counts):,} of them for {worst.name!r}; the most is {MOST_NODES:,}",
        hint=f"{_what_to_raise(worst)}; --max {total}nodes allows them",
    )


def _refuse_experts(sites: Iterable[ExpertSite], options: TilingPolicy) -> None:
    """Raise UsageError where a mixture of experts would become more nodes than the options allow."""
    for site in sites:
        if 2 * site.tiles > max(MOST_NODES, options.nodes_at_most or 0):
            raise UsageError(
                f"tiling would write {2 * site.tiles:,} nodes for {site.name!r}; the most is {MOST_NODES:,}",
                hint=f"raise N and K of --max, which cut {site.inner} into {site.tiles} there",
            )


def _what_to_raise(worst: TileSite) -> str:
    """Return the limit that makes most of the tiles of a site."""
    counts = dict(zip("mkn", worst.grid.shape, strict=True))
    axis = max("mkn", key=lambda letter: counts[letter])
    if worst.contraction.windows:
        return f"raise the limits along {axis.upper()}, which is cut into {counts[axis]} there"
    cuts = worst.grid.rows if axis == "m" else getattr(worst.grid, axis)
    return f"raise {axis.upper()} of --max (now {cuts.step}), which cuts {cuts.size} into {cuts.count} there"


# A tiled layer in a local function, so that no converter merges its tiles.
#
# The function has the inputs of the tiles: operands, blocks of constants, bias. The sizes for Split, Pad and Slice are Constants inside it,
# since hardware compilers need them inline.


def wrap(model: ir.Model, writer: Writer, result: ir.Value) -> tuple[ir.Node, list[ir.Value]]:
    """Move the nodes of `writer` into a function of `model`; return its call, and the constants that stay outside."""
    sizes = dict.fromkeys(writer.sizes)
    outer = [value for value in read_from_outside(writer.nodes) if value not in sizes]
    stem = re.sub(r"\W+", "_", f"Tiled_{writer.op}_{writer.site}").strip("_")
    name = free_function(model, chain([stem], (f"{stem}_{number}" for number in count(2))))
    opsets = {"": writer.opset, **{node.domain: 1 for node in writer.nodes if node.domain}}
    function = add_function(model, name, writer.nodes, outer, [result], opsets, sizes)
    for value, inner in zip(outer, function.inputs, strict=True):
        inner.const_value = value.const_value  # the function is called once
    mark = writer.metadata("layer", {})
    function.metadata_props.update(mark)
    output = ir.Value(name=result.name, type=result.type, shape=result.shape)
    call_name = writer.fresh("layer")
    notes = {**mark, **module_note(writer.path, call_name)}
    call = ir.Node(keys.DOMAIN, name, outer, outputs=[output], name=call_name, metadata_props=notes)
    return call, [value for value in writer.constants if value not in sizes]


@dataclass(frozen=True)
class Writing:
    """The model, names, constants and options that all sites of one model are written with."""

    model: ir.Model
    names: Names
    constants: KnownConstants
    options: TilingPolicy
    cache: BlockCache = field(default_factory=dict)
    reader: ConstantReader = field(default_factory=ConstantReader)
    bodies: frozenset[ir.Graph] = frozenset()
    """The graphs of local functions."""

    def constants_in(self, graph: ir.Graph) -> KnownConstants:
        """Return which values are constant for a node of `graph`."""
        return NoConstants() if graph in self.bodies else self.constants


def rewrite(site: TileSite, writing: Writing) -> TiledNode | SkippedNode:
    """Replace the node of `site` in its graph, and return the report on it."""
    node, graph = site.node, site.node.graph
    if not isinstance(graph, ir.Graph):
        reason = "it was the constant operand of a tiled node only, and is gone"
        return SkippedNode(site.name, reason, ReasonCode.GONE)
    constants, path = writing.constants_in(graph), module_path(node.name, node.metadata_props)
    writer = Writer(
        site.name,
        opset_of(writing.model),
        writing.names,
        writing.reader,
        op=node.op_type,
        contraction=site.contraction,
        grid=site.grid,
        path=path,
    )
    _fold(site.contraction, constants)
    result = write_tiles(writer, constants, writing.cache, graph, writing.options.way)
    replaced = site.contraction.island or (node,)
    originals = tuple(ir.to_proto(original) for original in replaced)
    written, constants_left = writer.nodes, writer.constants
    if graph in writing.bodies:
        # A function has no initializers; any of its nodes may share these constants.
        graph.insert_before(
            graph[0], [constant_node(value, value) for value in constants_left if value.const_value is not None]
        )
        constants_left = []
    elif writing.options.wrap:
        call, constants_left = wrap(writing.model, writer, result)
        written, result = [call], call.outputs[0]
    for constant in constants_left:
        graph.register_initializer(constant)
    graph.insert_before(node, written)
    _take_over(replaced[-1], written[-1], result)
    read = _remove(replaced, node)
    prune((*site.contraction.values, *read), constants)
    return TiledNode(
        site.name,
        node.op_type,
        site.contraction,
        site.grid,
        originals,
        tuple(writer.nodes),
        fitting(writing.options.way, site.contraction),
        site.chosen,
        dotted(path),
    )


def _remove(nodes: Sequence[ir.Node], product: ir.Node) -> list[ir.Value]:
    """Remove `nodes` from the last to the first, those before `product` only where nothing reads them; return what they read."""
    read = []
    after = nodes[nodes.index(product) :]
    for node in reversed(nodes):
        if node not in after and any(map(is_read, node.outputs)):
            continue
        read += [value for value in node.inputs if value is not None]
        assert node.graph is not None
        node.graph.remove(node, safe=True)
    return read


def _fold(contraction: Contraction, constants: KnownConstants) -> None:
    """Compute the constants of `contraction` that operators make, before those operators are tiled themselves."""
    for value in contraction.values:
        if value in constants and value.producer() is not None:
            constants.array(value)


def _take_over(old: ir.Node, last: ir.Node, result: ir.Value) -> None:
    """Replace the output of `old` by `result`, the output of `last`, with the same name, type, shape, documentation and metadata."""
    value = old.outputs[0]
    result.type, result.shape, result.doc_string = (
        value.type or result.type,
        value.shape or result.shape,
        value.doc_string,
    )
    result.metadata_props.update(value.metadata_props)
    result.meta.update(value.meta)
    last.doc_string = old.doc_string
    last.metadata_props.update(
        {key: text for key, text in old.metadata_props.items() if key not in last.metadata_props}
    )
    value.replace_all_uses_with(result, replace_graph_outputs=True)
    result.name = value.name
