"""Cuts mixtures of experts (com.microsoft's MoE and QMoE) along the inner axis of the experts: N of the first product, K of the second.

The activation between the products takes each element of that axis by itself. So a node equals a sum of nodes over stretches of it, each
with these rows of the first weights and these columns of the second. All choose the same experts, since all read the same router.
https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md#com.microsoft.MoE and #com.microsoft.QMoE.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import lcm

import numpy as np
import onnx_ir as ir

from onnxtile.model import keys
from onnxtile.model.constants import constant_array, prune
from onnxtile.model.graph_writer import Names
from onnxtile.model.topology import all_nodes, called_functions, nodes_in
from onnxtile.operators.node_view import KnownConstants, NotApplicable
from onnxtile.operators.reads import TensorDims
from onnxtile.shapes.infer import values
from onnxtile.shapes.propagation import Propagation
from onnxtile.shapes.resolve import Shapes, resolve
from onnxtile.system.errors import Infeasible, ModelError
from onnxtile.system.runtime import Array
from onnxtile.tiling.contraction import ShapeTable, TilingFacts, given_input, required_input
from onnxtile.tiling.limits import Limits, TilingPolicy
from onnxtile.tiling.result import SkippedNode, TiledExperts

_DOMAIN = "com.microsoft"


@dataclass(frozen=True)
class _ExpertOperands:
    """The slots of the operands of one operator: those cut by `rows`, by `columns`, the bias of the result, and those not understood."""

    rows: tuple[int, ...]
    columns: tuple[int, ...]
    bias: int
    first: int
    second: int
    unknown: range


_OPERANDS: Mapping[str, _ExpertOperands] = {
    "MoE": _ExpertOperands((2, 3, 6, 7), (4,), 5, 2, 4, range(0)),
    "QMoE": _ExpertOperands((2, 3, 4, 8, 9, 10), (5, 6), 7, 2, 5, range(11, 21)),
}


@dataclass(frozen=True)
class ExpertSite:
    """A node that is cut into stretches of `step` elements of its `inner` axis.

    `gates` are the rows of the first product for an element: 2 where it also makes the gates, one after the other if `interleaved`.
    """

    node: ir.Node
    name: str
    experts: int
    width: int
    inner: int
    step: int
    gates: int
    interleaved: bool

    @property
    def stretches(self) -> Iterator[tuple[int, int]]:
        """The stretches of the inner axis."""
        return ((start, min(start + self.step, self.inner)) for start in range(0, self.inner, self.step))

    @property
    def tiles(self) -> int:
        """The number of stretches."""
        return -(-self.inner // self.step)


def find_experts(
    model: ir.Model, limits: Limits, facts: TilingFacts, names: Names, options: TilingPolicy
) -> list[ExpertSite | SkippedNode]:
    """Return the mixtures of experts of `model`, to be cut or left as they are; the model is not changed.

    Raises Infeasible where no stretch meets the limits, and the options are strict.
    """
    sites: list[ExpertSite | SkippedNode] = []
    for node in model.graph.all_nodes():
        if node.domain != _DOMAIN or node.op_type not in _OPERANDS:
            continue
        name = names.of(node)
        try:
            if name in options.skip:
                raise NotApplicable("left out on request")
            sites.append(_site(node, name, limits.of_operator(node.op_type), facts))
        except NotApplicable as reason:
            sites.append(SkippedNode(name, str(reason)))
        except Infeasible as error:
            if options.strict:
                raise
            sites.append(SkippedNode(name, f"{error} ({error.hint})", over_limits=True))
    return [site for site in sites if isinstance(site, SkippedNode) or site.tiles > 1]


def _site(node: ir.Node, name: str, limits: Limits, facts: TilingFacts) -> ExpertSite:
    """Return the cuts of `node`. Raises NotApplicable and Infeasible."""
    slots = _OPERANDS[node.op_type]
    if facts.dtype(required_input(node, 0), node.op_type) != ir.DataType.FLOAT:
        raise NotApplicable(f"{node.op_type} is cut for float32 only")
    if any(given_input(node, slot) is not None for slot in slots.unknown):
        raise NotApplicable("it has zero points, weights of its own for routing, or further scales")
    if node.attributes.get_string("quant_type", "int") != "int" or node.attributes.get_int("weights_prepacked", 0) > 0:
        raise NotApplicable("its weights are not stored as whole numbers, row by row")
    for slot in (*slots.rows, *slots.columns):
        value = given_input(node, slot)
        if value is not None and (value.const_value is None or not value.is_initializer()):
            raise NotApplicable(f"its weights {value.name!r} are not an initializer")
    experts, rows, _ = _three(node, slots.first, facts)
    _, width, columns = _three(node, slots.second, facts)
    held = _held(node)
    inner = columns * held
    gates = rows // inner if inner else 0
    fusion = node.attributes.get_int("swiglu_fusion", 0)
    if not inner or rows % inner or gates not in {1, 2} or (gates == 2 and fusion not in {1, 2}):
        raise NotApplicable(f"its products have {rows} and {inner} inner elements")
    return ExpertSite(
        node, name, experts, width, inner, _step(node, name, inner, limits, facts), gates, interleaved=fusion == 1
    )


def _step(node: ir.Node, name: str, inner: int, limits: Limits, facts: TilingFacts) -> int:
    """Return the length of a stretch: within the limits of N and K, in whole bytes and blocks of the second weights."""
    bounds = [bound for bound in (limits.k, limits.n) if bound is not None]
    scales = given_input(node, 6) if node.op_type == "QMoE" else None
    is_blocked = scales is not None and len(facts.known_dims(scales)) == 3
    block = node.attributes.get_int("block_size", 0) if is_blocked else 0
    unit = lcm(_held(node), max(block, 1), *limits.multiples[1:])
    most = min(bounds, default=inner)
    if inner <= most:
        return inner
    if most < unit:
        raise Infeasible(
            f"{name!r}: its experts are cut into stretches of {unit} elements at least",
            hint=f"allow --max-n {unit} and --max-k {unit}",
        )
    return most // unit * unit


def _held(node: ir.Node) -> int:
    """Return the number of the second weights in a byte or element."""
    if node.op_type != "QMoE":
        return 1
    bits = node.attributes.get_int("expert_weight_bits", 4)
    return max(1, 8 // max(1, node.attributes.get_int("fc2_expert_weight_bits", bits)))


def _three(node: ir.Node, slot: int, facts: TilingFacts) -> tuple[int, int, int]:
    value = required_input(node, slot)
    dims = facts.known_dims(value)
    if len(dims) != 3:
        raise NotApplicable(f"its weights {value.name!r} have {len(dims)} axes, not 3")
    return dims[0], dims[1], dims[2]


def cut_experts(site: ExpertSite, constants: KnownConstants, names: Names) -> TiledExperts:
    """Replace the node of `site` by a sum of nodes over the stretches, one added after the other."""
    node, graph = site.node, site.node.graph
    assert graph is not None
    result, old = node.outputs[0], list(node.inputs)
    nodes: list[ir.Node] = []
    total: ir.Value | None = None
    for index, (start, end) in enumerate(site.stretches):
        inputs = [_part(site, number, start, end, constants, names) for number in range(len(old))]
        tile = _node(site, node.op_type, inputs, f"{site.name}/n{index}", index, names, node.attributes.values())
        nodes.append(tile)
        if total is not None:
            nodes.append(_node(site, "Add", [total, tile.outputs[0]], f"{site.name}/sum{index}", index, names))
        total = nodes[-1].outputs[0]
    ir.convenience.replace_nodes_and_values(graph, node, [node], nodes, [result], [nodes[-1].outputs[0]])
    prune((value for value in old if value is not None), constants)
    return TiledExperts(
        site.name, node.op_type, site.experts, site.width, site.inner, site.step, site.tiles, len(nodes)
    )


def _node(
    site: ExpertSite,
    op: str,
    inputs: Sequence[ir.Value | None],
    name: str,
    index: int,
    names: Names,
    attributes: Iterable[ir.Attr] = (),
) -> ir.Node:
    source = site.node.outputs[0]
    output = ir.Value(name=names.fresh(name), type=source.type, shape=source.shape)
    mark = json.dumps({"source": site.name, "op": site.node.op_type, "n": index}, ensure_ascii=False)
    domain = _DOMAIN if op == site.node.op_type else ""
    return ir.Node(
        domain,
        op,
        inputs,
        tuple(attributes),
        outputs=[output],
        name=names.fresh(name),
        metadata_props={keys.TILE: mark},
    )


def _part(
    site: ExpertSite, slot: int, start: int, end: int, constants: KnownConstants, names: Names
) -> ir.Value | None:
    """Return the operand at `slot` of the tile from `start` to `end`; the bias of the result goes into the first tile alone."""
    slots, value = _OPERANDS[site.node.op_type], site.node.inputs[slot]
    if value is None or (slot == slots.bias and start):
        return None
    if slot in slots.rows:
        at, axis = _rows(site, slot, start, end), 1
    elif slot in slots.columns and value.shape is not None and len(value.shape) == 3:
        per = site.inner // value.shape.numpy()[2]
        at, axis = np.arange(start // per, -(-end // per)), 2
    else:
        return value
    array: Array = np.take(constants.array(value), at, axis)
    name = names.fresh(f"{value.name}/{start}")
    graph = value.graph
    assert graph is not None
    part = ir.Value(name=name, const_value=ir.Tensor(array, name=name), shape=ir.Shape(array.shape), type=value.type)
    graph.register_initializer(part)
    return part


def _rows(site: ExpertSite, slot: int, start: int, end: int) -> Array:
    """Return the rows of the first product of the elements from `start` to `end`, and those of their gates."""
    if site.gates == 1 or slot not in {2, 3, 4}:
        return np.arange(start, end)
    if site.interleaved:
        return np.arange(2 * start, 2 * end)
    return np.concatenate([np.arange(start, end), np.arange(site.inner + start, site.inner + end)])


# Shapes inside local functions: the sizes that their call sites agree on, and the small constants that these give.

_IR_VERSION = 10
_MOST = 64
"""Most elements of a constant that may decide shapes: the inputs of Reshape, Slice, Split or Expand have about one an axis."""
Signature = tuple[tuple[ir.DataType | None, TensorDims | None] | None, ...]
"""Element type and dimensions of each input of a call; None for one that is left out."""


@dataclass(frozen=True)
class FunctionShapes:
    """The shapes of the values of one function, as all its calls see them."""

    shapes: Shapes
    given: Mapping[ir.Value, Array]
    """The elements of the inputs that are the same small constant in all calls."""


class FunctionTable:
    """The bodies of a model's functions; each is inferred once, after those that call it."""

    def __init__(self, model: ir.Model, shapes: ShapeTable, constants: KnownConstants) -> None:
        self._model = model
        self._shapes = shapes
        self._constants = constants
        self._known: dict[ir.OperatorIdentifier, FunctionShapes | str] = {}
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

    def of(self, function: ir.Function) -> Shapes:
        """Return the shapes inside `function`. Raises NotApplicable with the reason where its calls do not decide them."""
        return self._inside(function).shapes

    def _inside(self, function: ir.Function) -> FunctionShapes:
        """Return the shapes inside `function`. Raises NotApplicable with the reason where its calls do not decide them."""
        key = function.identifier()
        if key not in self._known:
            try:
                self._known[key] = self._infer(function)
            except NotApplicable as reason:
                self._known[key] = str(reason)
        body = self._known[key]
        if isinstance(body, str):
            raise NotApplicable(f"it is inside the local function {function.domain}::{function.name}, {body}")
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

    def _fact(self, value: ir.Value) -> tuple[ir.DataType | None, TensorDims | None]:
        caller = self._callers.get(value)
        table: ShapeTable = self._shapes if caller is None else self.of(self._model.functions[caller])
        return table.dtype(value), table.dims(value)

    def _given(self, calls: Sequence[ir.Node], count: int) -> list[Array | None]:
        """Return for each input of a function the small constant that all its calls give, None where they differ or give another value."""
        given: list[Array | None] = []
        for index in range(count):
            arrays = [self._held(call.inputs[index]) if index < len(call.inputs) else None for call in calls]
            same = all(
                array is not None and arrays[0] is not None and np.array_equal(array, arrays[0]) for array in arrays
            )
            given.append(arrays[0] if same else None)
        return given

    def _held(self, value: ir.Value | None) -> Array | None:
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
            raise NotApplicable(f"of whose input {value.name!r} nothing is known")
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
        raise NotApplicable(f"whose shapes cannot be inferred: {error}") from None


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
                first = kept.setdefault(_content(function), function)
                if first is not function:
                    self._replace(function, first)

    def _split(self, function: ir.Function) -> None:
        try:
            calls = self._table.calls(function)
        except NotApplicable:
            return
        for group in list(calls.values())[1:]:
            copy = _named(function, self._free_name(function))
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


def _named(function: ir.Function, name: str) -> ir.Function:
    """Return a copy of `function` called `name`."""
    copy = function.clone()
    attributes = list(copy.attributes.values())
    named = ir.Function(function.domain, name, function.overload, graph=copy.graph, attributes=attributes)
    named.metadata_props.update(function.metadata_props)
    named.doc_string = function.doc_string
    return named


def _content(function: ir.Function) -> tuple[object, ...]:
    """Return the content of a copy of a function: its nodes, by operator and name."""
    return tuple((node.op_identifier(), node.name) for node in function)


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
