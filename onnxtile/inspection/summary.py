"""The summary of a model, made without running it."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import field
from functools import cache, cached_property
from typing import Any, ClassVar

import onnx
import onnx_ir as ir

from onnxtile.declare.verb import JsonFields, VerbResult
from onnxtile.inspection.layers import (
    LayerCost,
    Module,
    Quantisation,
    Ranking,
    Tensor,
    WorkFormulas,
    layers,
    modules,
    quantisations,
    summed,
    tensor,
    work_formulas,
)
from onnxtile.inspection.training import Kept, kept_for_training
from onnxtile.inspection.work import add_up
from onnxtile.model.binding import bind_leading, free_inputs, symbols
from onnxtile.model.constants import Constants, constant_tensor
from onnxtile.model.formula import SizeRanges
from onnxtile.model.modules import held_as, is_folded_parameter
from onnxtile.model.topology import dependencies, nodes_in
from onnxtile.operators.node_view import operator_name
from onnxtile.operators.table import movement_of
from onnxtile.shapes.resolve import Shapes, resolve, tensor_bytes
from onnxtile.system.dataclass import dataclass

# The operators of a model: how often each is used, and with which attributes.

_DISTINCT = 16
"""Different values of an attribute that are listed; beyond, its range has to do."""
_NUMBERS = {ir.AttributeType.INT, ir.AttributeType.FLOAT, ir.AttributeType.INTS, ir.AttributeType.FLOATS}
_TEXTS = {ir.AttributeType.STRING, ir.AttributeType.STRINGS}


@dataclass(frozen=True)
class AttributeRange(JsonFields):
    """The values that an attribute has over all nodes of an operator, the default of its schema included.

    `values` are the different ones in order (None where there are too many, or they are tensors or graphs), `low` and `high` the smallest
    and the largest number in any of them. `name` is that of the attribute, `nodes` the number of nodes that have it.
    """

    JSON = "name nodes values min=low max=high"

    name: str
    nodes: int
    values: tuple[Any, ...] | None
    low: float | None
    high: float | None


@dataclass(frozen=True)
class OperatorUse(JsonFields):
    """How often an operator stands in the graphs of a model, and the ranges of its attributes.

    `op` is the operator, with its domain where that is not ONNX's; `count` the number of nodes; `attributes` the ranges.
    """

    op: str
    count: int
    attributes: tuple[AttributeRange, ...]


def operators(model: ir.Model) -> tuple[OperatorUse, ...]:
    """Return the operators of all graphs of `model`, bodies included, the most frequent first.

    A call of a local function counts as one operator; what is in the function's body does not.
    """
    nodes: dict[str, list[ir.Node]] = {}
    for node in nodes_in(model.graph):
        nodes.setdefault(operator_name(node), []).append(node)
    opsets = model.graph.opset_imports
    uses = [OperatorUse(op, len(users), tuple(_ranges(users, opsets))) for op, users in nodes.items()]
    return tuple(sorted(uses, key=lambda use: (-use.count, use.op)))


def _ranges(nodes: list[ir.Node], opsets: Mapping[str, int]) -> Iterable[AttributeRange]:
    defaults = _defaults(nodes[0].op_type, nodes[0].domain, opsets.get(nodes[0].domain, 1))
    names = dict.fromkeys(name for node in nodes for name in node.attributes)
    for name in sorted({*names, *defaults}):
        given = [node.attributes[name] for node in nodes if name in node.attributes]
        default = [defaults[name]] if name in defaults and len(given) < len(nodes) else []
        yield _range(name, len(given), [*given, *default])


def _range(name: str, count: int, attributes: list[ir.Attr]) -> AttributeRange:
    plain = [attribute for attribute in attributes if not attribute.is_ref()]
    kinds = {attribute.type for attribute in plain}
    if not kinds or not kinds <= _NUMBERS | _TEXTS:
        return AttributeRange(name, count, None, None, None)
    distinct = sorted({_plain(attribute.value) for attribute in plain}, key=_key)
    numbers = [n for value in distinct for n in (value if isinstance(value, tuple) else (value,))]
    numeric = kinds <= _NUMBERS and bool(numbers)
    return AttributeRange(
        name,
        count,
        tuple(distinct) if len(distinct) <= _DISTINCT else None,
        min(numbers) if numeric else None,
        max(numbers) if numeric else None,
    )


def _key(value: Any) -> Any:
    return (len(value), value) if isinstance(value, tuple) else value


def _plain(value: Any) -> Any:
    """Return a number or a text, or a tuple of them; floats as the float32 that the file holds, in its shortest form."""
    if isinstance(value, list | tuple):
        return tuple(_plain(item) for item in value)
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    return float(f"{value:.7g}") if isinstance(value, float) else value


@cache
def _defaults(op_type: str, domain: str, version: int) -> dict[str, ir.Attr]:
    """Return the attributes that have a default value in the operator's schema; none where no schema knows it."""
    try:
        schema = onnx.defs.get_schema(op_type, version, domain)
    except onnx.defs.SchemaError:
        return {}
    given = {
        name: attribute.default_value for name, attribute in schema.attributes.items() if attribute.default_value.name
    }
    return {name: ir.serde.deserialize_attribute(proto) for name, proto in given.items()}


# The parameters of a model: learnt constants, counted apart from constants that only control the computation.

_STEERING = {ir.DataType.INT64, ir.DataType.BOOL, ir.DataType.STRING}


@dataclass(frozen=True)
class Parameters(JsonFields):
    """How many tensors, how many elements in them and how many bytes these take; elements also by element type.

    `statistics` are elements that no gradient changes: means and variances of batch normalisations, and what PyTorch's exporter calls
    buffers. `others` are the bytes of all other constants that are read: scalars, and tensors that steer (shapes, axes, indices). `tensors`
    and `elements` are numbers, `bytes` those stored, `by_dtype` has the elements of each type.
    """

    JSON = "tensors elements trainable bytes by_dtype other_constant_bytes=others"

    tensors: int
    elements: int
    bytes: int
    by_dtype: dict[str, int]
    others: int
    statistics: int = 0

    @property
    def trainable(self) -> int:
        """How many elements a gradient changes."""
        return self.elements - self.statistics


def parameters(model: ir.Model, shapes: Shapes, constants: Constants) -> Parameters:
    """Count the constants that computed nodes read, each once, however the exporter wrote them, in the element type that is stored.

    A parameter has at least one dimension and is no int64, boolean or string: those are shapes, axes, indices and masks. Where PyTorch's
    exporter has written which constants the modules hold, one element is a parameter if a module holds it: the scale of an attention is
    none, whatever its shape. What a batch normalisation has gathered (mean, variance) counts, as it is stored and read like the rest.
    """
    is_own = _parameter_test(model, shapes)
    values = dict.fromkeys(_read(model, constants))
    read = list(dict.fromkeys(stored for value in values for stored in _stored(value)))
    weights = [value for value in read if is_own(value)]
    fixed = _gathered(model).union(value for value in weights if held_as(value.metadata_props) == "BUFFER")
    by_dtype: Counter[str] = Counter()
    for value in weights:
        dtype = shapes.dtype(value)
        by_dtype[dtype.name.lower() if dtype is not None else "?"] += _elements(value, shapes)
    sizes = {value: tensor_bytes(value, shapes) or 0 for value in read}
    mine = sum(sizes[value] for value in weights)
    inner = [tensor for tensor in _in_functions(model) if len(tensor.shape) and tensor.dtype not in _STEERING]
    for constant in inner:
        by_dtype[constant.dtype.name.lower()] += constant.size
    return Parameters(
        len(weights) + len(inner),
        sum(by_dtype.values()),
        mine + sum(tensor.nbytes for tensor in inner),
        dict(sorted(by_dtype.items())),
        sum(sizes.values()) - mine,
        sum(_elements(value, shapes) for value in fixed.intersection(weights)),
    )


def stored_parameters(model: ir.Model, shapes: Shapes, constants: Constants) -> dict[str, dict[str, int]]:
    """Return for each constant that nodes read, by name, the parameters that it is a view of, with their elements."""
    is_own = _parameter_test(model, shapes)
    return {
        value.name or "": {tensor.name or "": _elements(tensor, shapes) for tensor in _stored(value) if is_own(tensor)}
        for value in dict.fromkeys(_read(model, constants))
    }


def _parameter_test(model: ir.Model, shapes: Shapes) -> Callable[[ir.Value], bool]:
    """Return what tells parameters of `model` from other constants."""
    is_said = any(held_as(value.metadata_props) for value in model.graph.initializers.values())

    def is_own(value: ir.Value) -> bool:
        notes = value.metadata_props
        if is_said and _elements(value, shapes) == 1:
            is_held = bool(held_as(notes)) or is_folded_parameter(notes)
        else:
            is_held = shapes.dims(value) != ()
        return is_held and shapes.dtype(value) not in _STEERING

    return is_own


def _elements(value: ir.Value, shapes: Shapes) -> int:
    """Return how many elements `value` has, 0 where its sizes are not known."""
    sizes = shapes.sizes(value)
    return 0 if sizes is None else math.prod(sizes)


def _gathered(model: ir.Model) -> set[ir.Value]:
    """Return the means and variances that batch normalisations read."""
    norms = (node for node in nodes_in(model.graph) if node.op_type == "BatchNormalization")
    read = (value for node in norms for value in node.inputs[3:5] if value is not None)
    return {stored for value in read for stored in _stored(value)}


def _read(model: ir.Model, constants: Constants) -> Iterator[ir.Value]:
    for node in nodes_in(model.graph):
        if not all(value in constants for value in node.outputs):
            yield from (value for value in dependencies(node) if value in constants)
    yield from (value for value in model.graph.outputs if value in constants)


_CONVERSIONS = {"Cast", "DequantizeLinear"}


def _stored(value: ir.Value) -> Iterator[ir.Value]:
    """Yield the constants that `value` is a view or a conversion of: weights are often stored in fewer bytes than are read."""
    todo = [value]
    while todo:
        current = todo.pop()
        node = current.producer()
        is_moved = node is not None and movement_of(node) in {"renames", "permutes"}
        if node is None or not (is_moved or node.op_type in _CONVERSIONS):
            yield current
            continue
        operands = node.inputs[:1] if is_moved else node.inputs
        todo.extend(operand for operand in operands if operand is not None)


def _in_functions(model: ir.Model) -> Iterator[ir.TensorProtocol]:
    """Yield the tensors that functions hold, those of each function once, however often it is called."""
    for function in model.functions.values():
        for node in function.all_nodes():
            held = constant_tensor(node) if node.op_type == "Constant" else None
            if held is not None:
                yield held


@dataclass(frozen=True)
class Remark(JsonFields):
    """Something that a reader should know of a node or a value, and why.

    `name` is that of the node or value, `reason` a sentence.
    """

    name: str
    reason: str


@dataclass(frozen=True)
class Totals(JsonFields):
    """Sums over the nodes of one graph: MACs, additions of biases and FLOPs by operator, and nodes of which they are not known."""

    JSON = "total by_operator=macs by_operand_types=by_factors bias_additions=additions unknown"

    macs: Mapping[str, int]
    additions: Mapping[str, int]
    unknown: tuple[Remark, ...]
    flops: Mapping[str, int]
    uncounted: tuple[Remark, ...]
    """Nodes whose FLOPs are not known."""
    by_factors: Mapping[str, int] = field(default_factory=dict)
    """MACs by the stored element types of what is multiplied."""

    @classmethod
    def from_layers(cls, layers: Iterable[LayerCost]) -> Totals:
        """Return the sums over `layers`."""
        layers = list(layers)
        unknown = tuple(Remark(layer.node, layer.work.unknown) for layer in layers if layer.work.unknown)
        uncounted = tuple(Remark(cost.node, cost.work.why_uncounted) for cost in layers if cost.work.why_uncounted)
        return cls(
            add_up(cost.work.macs for cost in layers),
            add_up(cost.work.additions for cost in layers),
            unknown,
            add_up(cost.work.flops for cost in layers),
            uncounted,
            add_up({cost.factors: cost.work.total or 0} for cost in layers if cost.factors),
        )

    @property
    def total(self) -> int:
        """All MACs."""
        return sum(self.macs.values())

    def flops_to_dict(self) -> dict[str, Any]:
        """Return the JSON of the FLOPs."""
        unknown = [remark.to_dict() for remark in self.uncounted]
        return {"total": sum(self.flops.values()), "by_operator": dict(self.flops), "unknown": unknown}


@dataclass(frozen=True)
class Traffic(JsonFields):
    """Bytes of activations: what the busiest node reads and writes, what all nodes do, and all activations, each once.

    The busiest node may stand in a body; sums are over the main graph, of what is known: `unknown` are nodes whose traffic is not.
    """

    JSON = "peak=busiest sum weights activations activations_with_inputs unknown_nodes=unknown"

    peak: int
    peak_node: str
    sum: int
    activations: int
    inputs: int
    unknown: int
    weights: int = 0
    """Bytes of constants that all nodes read."""

    @property
    def busiest(self) -> Mapping[str, object]:
        """The busiest node with its bytes."""
        return {"node": self.peak_node, "bytes": self.peak}

    @property
    def activations_with_inputs(self) -> int:
        """Bytes of all activations and of the inputs."""
        return self.activations + self.inputs


@dataclass(frozen=True, repr=False)
class Inspection(VerbResult):
    """What a model is made of and what it costs. `unknown` are values whose size only a run can tell.

    - `ir_version`: of the file.
    - `producer`: the program that wrote the file, with its version.
    - `opsets`: the version of each operator set, by domain.
    - `inputs`, `outputs`: those of the model, with their element types, sizes and bytes.
    - `operators`: how often each operator stands in the model, and the ranges of its attributes.
    - `parameters`: tensors, elements and bytes of the constants.
    - `layers`: the work of each node in MACs and FLOPs, and the bytes that it reads and writes.
    - `conflicts`: values whose declared and inferred shapes differ, each with the reason.
    - `training`: the activations that a backward pass keeps, in bytes; None where they were not asked for.
    - `open`: symbolic dimensions without a size.
    - `sizes`: the sizes that open dimensions were given, by name.
    - `modules`: the sums over the modules that the exporter wrote; None where they were not asked for.
    - `quantised`: the scale, the zero point and the axis of each quantised tensor.
    - `formulas`: MACs, FLOPs and bytes as formulas of dimensions with ranges; None without ranges.
    - `top`: the nodes that cost most; None where they were not asked for.
    """

    JSON = (
        "ir_version producer opsets inputs outputs operators parameters macs=_macs flops=_flops traffic "
        "workspaces=_workspaces nodes=layers unknown conflicts open sizes quantisation=quantised formulas? "
        "top? tree=modules? training?"
    )

    verb: ClassVar[str] = "inspect"

    ir_version: int
    producer: str
    opsets: Mapping[str, int]
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    operators: tuple[OperatorUse, ...]
    parameters: Parameters
    layers: tuple[LayerCost, ...]
    unknown: tuple[Remark, ...]
    conflicts: tuple[Remark, ...]
    training: Kept | None = None
    open: tuple[str, ...] = ()
    """The options that bind what is open in the inputs."""
    sizes: Mapping[str, int] = field(default_factory=dict)
    """The sizes of open dimensions for which the figures are given: 1 for the first dimensions of inputs; empty where others are open."""
    modules: tuple[Module, ...] | None = None
    quantised: tuple[Quantisation, ...] = ()
    formulas: WorkFormulas | None = None
    """The work at all sizes of open dimensions; None where none is open."""
    top: Ranking | None = None
    """The nodes that cost most, where they were asked for."""

    @cached_property
    def totals(self) -> Totals:
        """The sums over the main graph."""
        return Totals.from_layers(layer for layer in self.layers if not layer.body)

    @cached_property
    def bodies(self) -> dict[str, Totals]:
        """The sums over each body (of If, Loop, Scan), for one pass."""
        names = dict.fromkeys(layer.body for layer in self.layers if layer.body)
        return {name: Totals.from_layers(layer for layer in self.layers if layer.body == name) for name in names}

    @property
    def traffic(self) -> Traffic:
        """The bytes of activations that are moved, and that there are."""
        known = [(layer.traffic, layer.node) for layer in self.layers if layer.traffic is not None]
        peak, node = max(known, key=lambda pair: pair[0], default=(0, ""))
        main = [layer for layer in self.layers if not layer.body]
        return Traffic(
            peak,
            node,
            sum(layer.traffic or 0 for layer in main),
            sum(tensor.bytes or 0 for layer in main for tensor in layer.outputs),
            sum(tensor.bytes or 0 for tensor in self.inputs),
            sum(layer.traffic is None for layer in self.layers),
            sum(layer.weights or 0 for layer in main),
        )

    @property
    def _macs(self) -> dict[str, Any]:
        return {**self.totals.to_dict(), "bodies": self.bodies}

    @property
    def _flops(self) -> dict[str, Any]:
        bodies = {name: body.flops_to_dict() for name, body in self.bodies.items()}
        return {**self.totals.flops_to_dict(), "bodies": bodies}

    @property
    def _workspaces(self) -> Mapping[str, object]:
        return summed((layer.node, layer.workspace) for layer in self.layers if layer.workspace != 0)

    @property
    def summary(self) -> str:
        """How many nodes, parameters and multiply-accumulates the model has."""
        macs = f"{self.totals.total:,}" if self.formulas is None else str(self.formulas.macs.total)
        return f"{len(self.layers):,} nodes, {self.parameters.elements:,} parameters, {macs} MACs"


def summarise(
    model: ir.Model, *, training: ir.Model | None = None, tree: bool = False, ranges: SizeRanges | None = None
) -> Inspection:
    """Return all that can be said of `model`, which stays as it is, without running it or reading its weights.

    `training` is the same model as a framework would train it: also the bytes of activations that a backward pass of it would keep are
    returned. With `tree`, the sums over modules, too. `ranges` are those of open dimensions.
    Raises ModelError where shapes contradict each other.
    """
    opened, model, sizes = model, *_at_one(model, ranges)
    shapes, constants = resolve(model), Constants(model)
    costs = layers(model, shapes, constants)
    producer = f"{model.producer_name or ''} {model.producer_version or ''}".strip()
    return Inspection(
        model.ir_version,
        producer,
        dict(sorted(model.graph.opset_imports.items())),
        tuple(tensor(value, shapes, constants) for value in free_inputs(model)),
        tuple(tensor(value, shapes, constants) for value in model.graph.outputs),
        operators(model),
        parameters(model, shapes, constants),
        costs,
        tuple(_unknown(model, shapes, constants)),
        tuple(_conflicts(costs)),
        None if training is None else kept_for_training(training),
        tuple(_open(opened)),
        sizes,
        modules(costs, stored_parameters(model, shapes, constants)) if tree else None,
        quantisations(model, shapes, constants),
        work_formulas(opened, constants if opened is model else Constants(opened), ranges or {}),
    )


def _at_one(model: ir.Model, ranges: SizeRanges | None) -> tuple[ir.Model, dict[str, int]]:
    """Return `model` at the size 1 of open dimensions, where only the first ones of inputs are open; else as it is, without sizes."""
    if ranges or not _open(model):
        return model, {}
    bound = model.clone()
    taken = bind_leading(bound)
    return (model, {}) if taken is None else (bound, taken.sizes)


def _open(model: ir.Model) -> list[str]:
    """Return the options that give every size of the inputs that is open."""
    inputs = free_inputs(model)
    options = [f"--dim {name}=N" for name in symbols(inputs)]
    for value in inputs:
        sizes = None if value.shape is None else [dim if isinstance(dim, int) else dim.value for dim in value.shape]
        if sizes is not None and None in sizes:
            options.append(f"--shape {value.name}={'x'.join('N' if size is None else str(size) for size in sizes)}")
    return options


def _unknown(model: ir.Model, shapes: Shapes, constants: Constants) -> Iterator[Remark]:
    """Yield the values whose size is not known, with the reason."""
    inputs = free_inputs(model)
    declared = set(symbols(inputs))
    free = next((value.name for value in inputs if value.shape is None or not value.shape.is_static()), None)
    values = (value for node in nodes_in(model.graph) for value in node.outputs if value.name)
    for value in (*inputs, *values):
        if value in constants or shapes.sizes(value) is not None:
            continue
        names = [dim for dim in shapes.dims(value) or () if isinstance(dim, str)]
        # Other names are the inference's own, and say nothing to the user.
        if names and declared.issuperset(word for name in names for word in re.findall(r"[A-Za-z_]\w*\b(?!\()", name)):
            reason = f"it depends on {', '.join(dict.fromkeys(names))}"
        elif free is not None:
            reason = f"the input {free!r} has free dimensions"
        else:
            reason = shapes.reason(value)
        yield Remark(value.name or "", reason)


def _conflicts(costs: Iterable[LayerCost]) -> Iterator[Remark]:
    """Yield each Reshape that cannot hold what it is given: a size, mostly of the batch, is written into the model."""
    for layer in costs:
        if layer.op != "Reshape" or None in {layer.inputs[0].bytes, layer.outputs[0].bytes}:
            continue
        before, after = layer.inputs[0].dims or (), layer.outputs[0].dims or ()
        if layer.inputs[0].bytes != layer.outputs[0].bytes:
            yield Remark(
                layer.node, f"it is to make {_shown(after)} of {_shown(before)}: a size is written into the model"
            )


def _shown(dims: Iterable[object]) -> str:
    return f"[{', '.join(map(str, dims))}]"
