"""The cost of each node: bytes read and written, operations, and the quantisation of its tensors."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import field
from functools import cached_property
from typing import Any, NamedTuple, TypeAlias, cast

import onnx_ir as ir

from onnxtile.declare.verb import JsonFields
from onnxtile.inspection.work import NodeWork, SymbolicSize, formula_of, makes_constants, works
from onnxtile.model import keys
from onnxtile.model.binding import formula_names, free_inputs, rename_symbols, symbols
from onnxtile.model.constants import Constants
from onnxtile.model.formula import SizeFormula, SizeRanges
from onnxtile.model.modules import ModulePath, dotted, module_classes, module_path
from onnxtile.model.node_kinds import OWN_DOMAINS
from onnxtile.model.topology import dependencies, graphs_in, main_graphs, node_ids, nodes_in
from onnxtile.operators.node_view import Dims, given_input, operator_name
from onnxtile.operators.table import Products, QuantisedPort, movement_of, operator_of, quantised_form
from onnxtile.shapes.formulas import require_windows
from onnxtile.shapes.resolve import Shapes, resolve, tensor_bytes
from onnxtile.shapes.size_rule import SizeRule
from onnxtile.system.dataclass import dataclass
from onnxtile.system.errors import ModelError
from onnxtile.system.text import LARGEST_COUNT, without_numbers

# The quantisation of tensors (element type, scales, zero points, axis, block), and the element types of products.


class _Scoped(NamedTuple):
    """A node, and what the values of its graph stand for outside of it, where it stands in a function."""

    node: ir.Node
    outer: Mapping[ir.Value, ir.Value | None]


@dataclass(frozen=True)
class Quantisation(JsonFields):
    """How one tensor is quantised: q = x / scale + zero point, for the whole tensor, along `axis`, or in blocks along it.

    Scales and zero points are None where a run computes them. `tensor` is the name of what is quantised and `dtype` the element type it is
    stored in. `scale` and `zero_point` have one number, or one for each index of the axis or each block; `block_size` is in elements.
    """

    tensor: str
    dtype: str | None
    scale: tuple[float, ...] | None
    zero_point: tuple[float, ...] | None
    axis: int | None = None
    block_size: int | None = None


def quantisations(model: ir.Model, shapes: Shapes, constants: Constants) -> tuple[Quantisation, ...]:
    """Return how each quantised tensor of `model` is quantised, once, in the order in which nodes read or make them."""
    by_name: dict[str, Quantisation] = {}
    for scoped in _nodes(model):
        for quantisation in _of_node(scoped, shapes, constants):
            by_name.setdefault(quantisation.tensor, quantisation)
    return tuple(by_name.values())


def factors(node: ir.Node, model: ir.Model, shapes: Shapes) -> str:
    """Return the stored element types of what `node` multiplies, as "int8 x int8"; of a function, of the first product in it."""
    for scoped in _with_inside(_Scoped(node, {}), model):
        types = _factors(scoped, shapes)
        if types:
            return " x ".join(types)
    return "?"


def _factors(scoped: _Scoped, shapes: Shapes) -> list[str]:
    node = scoped.node
    row = operator_of(node)
    if row is None:
        return []
    if row.bits and isinstance(row.work, Products):
        return [_type(_stored(scoped, 0), shapes), f"int{node.attributes.get_int(row.bits, 4)}"]
    places = row.factors or ()
    # What attention reads packed, it multiplies by itself.
    given = [slot if slot < len(node.inputs) and node.inputs[slot] is not None else 0 for slot in places]
    return [_type(_stored(scoped, slot), shapes) for slot in given]


def _type(value: ir.Value | None, shapes: Shapes) -> str:
    dtype = None if value is None else shapes.dtype(value)
    return "?" if dtype is None else dtype.name.lower()


def _stored(scoped: _Scoped, slot: int) -> ir.Value | None:
    """Return the tensor that is read at `slot`, before it is dequantised."""
    value = given_input(scoped.node, slot)
    while value is not None:
        maker = value.producer()
        if maker is not None and maker.op_type == "DequantizeLinear" and maker.domain in OWN_DOMAINS:
            value = maker.inputs[0]
        elif value in scoped.outer:
            value = scoped.outer[value]
        else:
            break
    return value


def _nodes(model: ir.Model) -> Iterator[_Scoped]:
    for graph in main_graphs(model):
        for node in graph:
            if node.op_identifier() in model.functions:
                yield from _with_inside(_Scoped(node, {}), model)
            else:
                yield _Scoped(node, {})


def _with_inside(scoped: _Scoped, model: ir.Model) -> Iterator[_Scoped]:
    """Yield a node, or of a call what is in its function, at any depth."""
    todo = [scoped]
    while todo:
        scope = todo.pop()
        function = model.functions.get(scope.node.op_identifier())
        if function is None:
            yield scope
            continue
        given = (None if value is None else scope.outer.get(value, value) for value in scope.node.inputs)
        results = zip(function.outputs, (scope.outer.get(value, value) for value in scope.node.outputs), strict=False)
        outer = {**dict(zip(function.inputs, given, strict=False)), **dict(results)}
        todo.extend(_Scoped(inner, outer) for inner in reversed(list(function)))


def _of_node(scoped: _Scoped, shapes: Shapes, constants: Constants) -> Iterator[Quantisation]:
    node, row = scoped.node, operator_of(scoped.node)
    if row is None:
        return
    meaning = quantised_form(node)
    ports = row.ports if meaning is None else meaning.ports(node)
    size = node.attributes.get_int("block_size", 0) or None if ports else None
    for port in ports:
        value = _made(scoped, port.tensor) if port.is_made else _given(scoped, port.tensor)
        if value is None or not value.name:
            continue
        dtype = _type(value, shapes)
        if row.bits and not dtype.endswith(("int2", "int4")):
            dtype = f"int{node.attributes.get_int(row.bits, 4)}"  # several to a byte
        scale, zero = (_numbers(_given(scoped, slot), constants) for slot in (port.scale, port.zero_point))
        yield Quantisation(value.name, dtype, scale, zero, _axis(scoped, port, value, shapes), size)


def _axis(scoped: _Scoped, port: QuantisedPort, value: ir.Value, shapes: Shapes) -> int | None:
    """Return the axis of the scales, from 0; None for one scale, and where neither the node nor the operator says one."""
    scale, node = _given(scoped, port.scale), scoped.node
    sizes = None if scale is None else shapes.sizes(scale)
    if sizes in {(), (1,), None}:
        return None
    if node.op_type == "QMoE" and not node.attributes.get_int("block_size", 0):
        return 1  # a scale for each row of each expert
    attributes = {"DequantizeLinear": "axis", "QuantizeLinear": "axis", "GatherBlockQuantized": "quantize_axis"}
    axis = port.axis
    if node.op_type in attributes:
        axis = node.attributes.get_int(attributes[node.op_type], port.axis or 0)
    rank = shapes.sizes(value)
    return axis if axis is None or axis >= 0 else None if rank is None else axis + len(rank)


def _given(scoped: _Scoped, slot: int | None) -> ir.Value | None:
    values = scoped.node.inputs
    value = values[slot] if slot is not None and slot < len(values) else None
    return None if value is None else scoped.outer.get(value, value)


def _made(scoped: _Scoped, slot: int) -> ir.Value | None:
    value = scoped.node.outputs[slot]
    return scoped.outer.get(value, value)


def _numbers(value: ir.Value | None, constants: Constants) -> tuple[float, ...] | None:
    if value is None or value not in constants:
        return None
    return tuple(number.item() for number in constants.array(value).astype("float32").ravel())


# Workspaces that patterns declare for their meta-ops: the bytes that a kernel needs beside its operands and results.


def workspaces(model: ir.Model, shapes: Shapes) -> dict[ir.Node, int | None]:
    """Return the bytes for each node of all graphs that calls a function with a workspace.

    None where a shape is not known, or where the rule asks for the inside, which only a plan can tell. Raises UsageError for a rule that
    cannot be read.
    """
    texts = {name: function.metadata_props.get(keys.WORKSPACE) for name, function in model.functions.items()}
    rules = {name: SizeRule(text) for name, text in texts.items() if text is not None}
    calls = (node for node in nodes_in(model.graph) if node.op_identifier() in rules) if rules else ()
    return {node: _bytes(rules[node.op_identifier()], node, shapes) for node in calls}


def _bytes(rule: SizeRule, node: ir.Node, shapes: Shapes) -> int | None:
    try:
        return rule.bytes(node, shapes)
    except ModelError:
        return None


def summed(terms: Iterable[tuple[str, int | None]]) -> Mapping[str, object]:
    """Return the JSON of the workspaces of nodes, by name: the largest, the sum, and how many are not known."""
    pairs = list(terms)
    known = [(size, name) for name, size in pairs if size is not None]
    largest, node = max(known, key=lambda pair: pair[0], default=(0, ""))
    return {
        "nodes": len(pairs),
        "largest": {"node": node, "bytes": largest},
        "sum": sum(size for size, _ in known),
        "unknown_nodes": len(pairs) - len(known),
    }


_READS_NOTHING = {"Shape", "Size"}


@dataclass(frozen=True)
class Tensor(JsonFields):
    """A value: element type, dimensions (a name where free, None where unknown) and bytes, each None where nothing is known.

    `name` is that of the value, `dtype` as onnx_ir writes it in small letters, `dims` the dimensions, and `bytes` the size. `constant` says
    whether its elements are known without a run.
    """

    JSON = "name dtype shape=dims bytes constant"

    name: str
    dtype: str | None
    dims: Dims | None
    bytes: int | None
    constant: bool


@dataclass(frozen=True)
class LayerCost(JsonFields):
    """One node: `body` says in which body of which node it stands (empty: in the main graph); sizes in bytes.

    `node` is its name, `op` the operator; `inputs` and `outputs` are tensors. `work` has MACs and FLOPs. `read` and `written` are bytes of
    inputs and outputs, `weights` those of `read` that are constants. `workspace` are bytes that the pattern of a meta-op says its kernel
    needs besides. All four are None where they are not known. `factors` are the stored element types of what is multiplied, such as "int8 x
    int8". `module` has the names of the modules around the node, from the outermost on. `classes` are those of the model and of these
    modules; none where they are not known.
    """

    JSON = (
        "node op module=module_name body inputs outputs macs=work.total factors flops=work.operations "
        "bias_additions=work.bias_additions bytes_read=read weight_bytes_read=weights bytes_written=written "
        "workspace traffic intensity unknown=work.unknown?"
    )

    node: str
    op: str
    body: str
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    work: NodeWork = field(default_factory=NodeWork)
    read: int | None = None
    written: int | None = None
    weights: int | None = None
    workspace: int | None = 0
    factors: str = ""
    module: ModulePath = ()
    classes: tuple[str, ...] = ()

    @property
    def module_name(self) -> str:
        """The module that it is in, as "blocks.0.attn"."""
        return dotted(self.module)

    @cached_property
    def traffic(self) -> int | None:
        """Bytes of the activations that it reads and writes, each value once; None where one is not known."""
        sizes = {t.name: t.bytes for t in (*self.inputs, *self.outputs) if not t.constant}
        return _sum(sizes.values())

    @property
    def kind(self) -> tuple[object, ...]:
        """What it has in common with the same node of other layers: all but its name, and the numbers in that of its module."""
        sizes = tuple((tensor.dtype, tensor.dims, tensor.constant) for tensor in (*self.inputs, *self.outputs))
        return self.op, without_numbers(self.module_name), sizes

    @property
    def moved(self) -> int | None:
        """Bytes that it reads and writes, constants too; None where one size is not known."""
        return None if self.read is None or self.written is None else self.read + self.written

    @property
    def intensity(self) -> float | None:
        """Arithmetic intensity: MACs for each byte read or written; None where one of them is not known, or nothing is moved."""
        macs = self.work.total
        return None if macs is None or not self.moved else macs / self.moved


def layers(
    model: ir.Model, shapes: Shapes, constants: Constants, infer: Callable[[ir.Model], Shapes] = resolve
) -> tuple[LayerCost, ...]:
    """Return every node of the graphs of `model` that computes something, in order; those that only make constants are left out.

    `infer` returns the shapes of a copy in which calls are written out.
    """
    done, needed = works(model, shapes, constants, infer), workspaces(model, shapes)
    tensors: dict[ir.Value, Tensor] = {}

    def described(value: ir.Value) -> Tensor:
        if value not in tensors:
            tensors[value] = tensor(value, shapes, constants)
        return tensors[value]

    def layer(node: ir.Node, name: str, body: str) -> LayerCost:
        inputs = tuple(described(value) for value in dict.fromkeys(dependencies(node)))
        outputs = tuple(described(value) for value in node.outputs if value.name)
        work, written = done[node], _sum([tensor.bytes for tensor in outputs])
        read, weights = _read(node, inputs, written)
        return LayerCost(
            name,
            operator_name(node),
            body,
            inputs,
            outputs,
            work,
            read,
            written,
            weights,
            needed.get(node, 0),
            factors(node, model, shapes) if work.macs and work.total else "",
            module_path(node.name, node.metadata_props),
            module_classes(node.metadata_props),
        )

    return tuple(
        layer(node, name, body)
        for body, names in _graphs(model.graph)
        for node, name in names.items()
        if not makes_constants(node, constants)
    )


def tensor(value: ir.Value, shapes: Shapes, constants: Constants) -> Tensor:
    """Return name, element type, dimensions and bytes of `value`, as far as they are known."""
    dtype = shapes.dtype(value)
    name = None if dtype is None else dtype.name.lower()
    return Tensor(value.name or "", name, shapes.dims(value), tensor_bytes(value, shapes), value in constants)


def _graphs(graph: ir.Graph) -> Iterator[tuple[str, dict[ir.Node, str]]]:
    """Yield the names of the nodes of `graph` and of all bodies in it, each with the path to it: "If_3.then_branch"."""
    names: dict[ir.Node, str] = {}
    for path, inner in graphs_in(graph):
        inner_names = node_ids(inner)
        names |= inner_names
        yield "/".join(f"{names[node]}.{key}" for node, key in path), inner_names


def _read(node: ir.Node, inputs: tuple[Tensor, ...], written: int | None) -> tuple[int | None, int | None]:
    """Return the bytes that a node reads, and those of them that are constants."""
    sizes = [tensor.bytes for tensor in inputs]
    if not node.domain and node.op_type in _READS_NOTHING:
        return 0, 0
    if not node.domain and movement_of(node) == "selects":
        sizes[0] = written  # it reads of its first input as many elements as it writes
    if None in sizes:
        return None, None
    constants = [size for size, tensor in zip(sizes, inputs, strict=True) if tensor.constant]
    return _sum(sizes), _sum(constants)


def _sum(sizes: Collection[int | None]) -> int | None:
    return None if None in sizes else sum(size for size in sizes if size is not None)


# The nodes that cost most.

AMOUNTS: Mapping[str, Callable[[LayerCost], int | None]] = {
    "bytes": lambda layer: layer.moved,
    "macs": lambda layer: layer.work.total,
    "flops": lambda layer: layer.work.operations,
    "weights": lambda layer: layer.weights,
}
"""What nodes are ranked by: bytes read and written, multiply-accumulates, FLOPs, and bytes of constants read."""


@dataclass(frozen=True)
class RankedLayers:
    """Equal nodes: of one operator, on operands and results of the same sizes, in modules whose names differ in numbers only.

    `layers` are these nodes, `each` is the amount of one of them.
    """

    layers: tuple[LayerCost, ...]
    each: int

    @property
    def amount(self) -> int:
        """The amount of all of them."""
        return self.each * len(self.layers)

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON of the first of them, and the names and modules of all."""
        names = {
            "nodes": [layer.node for layer in self.layers],
            "modules": [layer.module_name for layer in self.layers],
        }
        counts = {"count": len(self.layers), "each": self.each, "amount": self.amount}
        return {**self.layers[0].to_dict(), **names, **counts}


@dataclass(frozen=True)
class Ranking(JsonFields):
    """The nodes of the main graph with the largest amounts of `by`, one of AMOUNTS, equal ones together; the largest sum comes first.

    `total` is the sum over all nodes of the main graph whose amount is known, `kinds` how many different ones there are; `unknown` counts
    the nodes whose amount is not known. `rows` are these groups of equal nodes.
    """

    JSON = "by kinds total unknown_nodes=unknown rows"

    by: str
    rows: tuple[RankedLayers, ...]
    kinds: int
    total: int
    unknown: int

    @classmethod
    def from_layers(cls, layers: Iterable[LayerCost], by: str, count: int | None = None) -> Ranking:
        """Return the `count` kinds of nodes with the largest sums, all where that is None; equal sums stay in the order of the graph."""
        groups: dict[object, list[LayerCost]] = {}
        unknown = 0
        for layer in layers:
            amount = AMOUNTS[by](layer)
            unknown += not layer.body and amount is None
            if not layer.body and amount is not None:
                groups.setdefault((layer.kind, amount), []).append(layer)
        ranked = [RankedLayers(tuple(same), AMOUNTS[by](same[0]) or 0) for same in groups.values()]
        ranked.sort(key=lambda row: -row.amount)
        return cls(by, tuple(ranked[:count]), len(ranked), sum(row.amount for row in ranked), unknown)


# Sums over the modules of a model.

Stored: TypeAlias = Mapping[str, Mapping[str, int]]
"""For each constant that is read the parameters that it is a view of, and how many elements these have."""


@dataclass
class Module(JsonFields):
    """All nodes of the main graph inside the module `path`, the model itself where that is empty; sizes in bytes, sums of what is known.

    `kind` is its class, empty where the exporter does not say it. `unknown` are nodes whose MACs or bytes are not known, `uncounted` those
    whose FLOPs are not. A parameter that several of the nodes read counts once. `nodes` counts nodes; `macs` and `flops` are sums, `read`
    and `written` bytes.
    """

    JSON = (
        "module=name path depth class=kind nodes parameters macs flops bytes_read=read bytes_written=written "
        "unknown_nodes=unknown uncounted_nodes=uncounted"
    )

    path: ModulePath
    kind: str = ""
    nodes: int = 0
    macs: int = 0
    flops: int = 0
    read: int = 0
    written: int = 0
    unknown: int = 0
    uncounted: int = 0
    _parameters: dict[str, int] = field(default_factory=dict, repr=False)

    @property
    def name(self) -> str:
        """The name of the module, as "blocks.0.attn"."""
        return dotted(self.path)

    @property
    def depth(self) -> int:
        """How many modules are around it, the model among them."""
        return len(self.path)

    @property
    def parameters(self) -> int:
        """How many elements the parameters have that its nodes read."""
        return sum(self._parameters.values())

    def add(self, layer: LayerCost, stored: Stored) -> None:
        """Take up a node."""
        self.nodes += 1
        self.macs += layer.work.total or 0
        self.flops += layer.work.operations or 0
        self.read += layer.read or 0
        self.written += layer.written or 0
        self.unknown += None in {layer.work.total, layer.read, layer.written}
        self.uncounted += layer.work.operations is None
        self.kind = self.kind or (layer.classes[len(self.path)] if layer.classes else "")
        for tensor in layer.inputs:
            self._parameters.update(stored.get(tensor.name, {}))


def modules(layers: Iterable[LayerCost], stored: Stored) -> tuple[Module, ...]:
    """Return the model and the modules of the nodes of its main graph, each before those inside, in the order in which the nodes stand."""
    by_path: dict[ModulePath, Module] = {(): Module(())}
    inside: dict[ModulePath, list[ModulePath]] = {(): []}
    for layer in layers:
        if layer.body:
            continue
        for depth in range(len(layer.module) + 1):
            at = layer.module[:depth]
            if at not in by_path:
                by_path[at] = Module(at)
                inside[at] = []
                inside[at[:-1]].append(at)
            by_path[at].add(layer, stored)
    order: list[Module] = []
    todo: list[ModulePath] = [()]
    while todo:
        at = todo.pop()
        order.append(by_path[at])
        todo += reversed(inside[at])
    return tuple(order)


# The work and the traffic of a model as formulas of its open dimensions.


@dataclass(frozen=True)
class FormulaSum:
    """The sum over nodes as a formula, also by operator, and the names of the nodes of which it is not known.

    `total` is the sum, `by_operator` has its parts, `unknown` the names.
    """

    total: SizeFormula
    by_operator: Mapping[str, SizeFormula]
    unknown: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return the formulas as expressions of Python."""
        by_operator = {operator: str(formula) for operator, formula in self.by_operator.items()}
        return {"total": str(self.total), "by_operator": by_operator, "unknown": list(self.unknown)}


@dataclass(frozen=True)
class WorkFormulas:
    """The MACs and FLOPs of the main graph as formulas of the dimensions in `ranges`, and the bytes that its nodes move.

    `traffic` are the bytes of activations that all nodes read and write, `weights` those of constants that they read. `activations` are the
    bytes of all activations, each once. `macs` and `flops` are these sums; the others are in bytes.
    """

    ranges: SizeRanges
    macs: FormulaSum
    flops: FormulaSum
    traffic: FormulaSum
    weights: FormulaSum
    activations: FormulaSum

    def to_dict(self) -> dict[str, Any]:
        """Return the formulas as expressions of Python; a range without a largest size ends in None."""
        ranges = {name: [low, None if high == LARGEST_COUNT else high] for name, (low, high) in self.ranges.items()}
        sums = ("macs", "flops", "traffic", "weights", "activations")
        return {"ranges": ranges, **{key: getattr(self, key).to_dict() for key in sums}}


class _SymbolicShapes(Shapes):
    """Shapes whose sizes are formulas where they depend on dimensions with a range."""

    ranges: SizeRanges

    @classmethod
    def from_model(cls, model: ir.Model, ranges: SizeRanges) -> _SymbolicShapes:
        """Return the shapes of `model` over `ranges`."""
        resolved = cls(**vars(resolve(model, ranges=ranges)))
        object.__setattr__(resolved, "ranges", ranges)
        return resolved

    def sizes(self, value: ir.Value) -> tuple[int, ...] | None:
        """Return the sizes of `value`, open ones as formulas with which the rules compute; None where one is not known."""
        formulas = self.formulas(value)
        if formulas is None:
            return None if self.is_bound(value) else super().sizes(value)
        sizes = (
            formula.constant if formula.constant is not None else SymbolicSize(formula, self.ranges)
            for formula in formulas
        )
        return cast("tuple[int, ...]", tuple(sizes))


def work_formulas(model: ir.Model, constants: Constants, ranges: SizeRanges) -> WorkFormulas | None:
    """Return the work of `model` as formulas of its open dimensions, each at least 1 or in its range; None where no dimension is open."""
    words = formula_names(model)
    if words:
        model = model.clone()
        rename_symbols(model, words)
        constants = Constants(model)
    ranges = {words.get(name, name): ends for name, ends in ranges.items()}
    names = [name for name in symbols(free_inputs(model)) if re.fullmatch(r"[A-Za-z_]\w*", name)]
    if not names:
        return None
    spans = {name: ranges.get(name, (1, LARGEST_COUNT)) for name in names}
    shapes = _SymbolicShapes.from_model(model, spans)
    require_windows(model, shapes.formulas, ranges)
    costs = layers(model, shapes, constants, lambda copy: _SymbolicShapes.from_model(copy, spans))
    main = [layer for layer in costs if not layer.body]
    return WorkFormulas(
        spans,
        _sum_of_formulas((layer, layer.work.macs if not layer.work.unknown else None) for layer in main),
        _sum_of_formulas((layer, layer.work.flops if not layer.work.why_uncounted else None) for layer in main),
        _sum_of_formulas((layer, _own(layer, layer.traffic)) for layer in main),
        _sum_of_formulas((layer, _own(layer, layer.weights)) for layer in main),
        _sum_of_formulas((layer, _own(layer, layer.written)) for layer in main),
    )


def _own(layer: LayerCost, count: int | None) -> dict[str, int] | None:
    return None if count is None else {layer.op: count}


def _sum_of_formulas(terms: Iterable[tuple[LayerCost, Mapping[str, int] | None]]) -> FormulaSum:
    """Return the sum of the counts by operator of each layer; None is a count that is not known."""
    total, unknown = SizeFormula.number(0), []
    sums: dict[str, SizeFormula] = {}
    for layer, counts in terms:
        if counts is None:
            unknown.append(layer.node)
            continue
        for operator, count in counts.items():
            formula = formula_of(count)
            total += formula
            sums[operator] = sums.get(operator, SizeFormula.number(0)) + formula
    return FormulaSum(total, {operator: formula for operator, formula in sums.items() if formula.terms}, tuple(unknown))
