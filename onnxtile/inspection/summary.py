"""The summary of a model, made without running it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import onnx_ir as ir

from onnxtile.inspection.formulas import WorkFormulas, work_formulas
from onnxtile.inspection.inlined import add_up
from onnxtile.inspection.layers import LayerCost, Tensor, layers, tensor
from onnxtile.inspection.modules import Module, modules
from onnxtile.inspection.operators import OperatorUse, operators
from onnxtile.inspection.parameters import Parameters, parameters, stored_parameters
from onnxtile.inspection.quantisation import Quantisation, quantisations
from onnxtile.inspection.training import Kept, kept_for_training
from onnxtile.inspection.workspaces import summed
from onnxtile.model.constants import Constants
from onnxtile.model.dims import free_inputs, symbols
from onnxtile.model.shapes import Shapes, resolve
from onnxtile.model.size_formula import SizeRanges
from onnxtile.result import VerbResult


@dataclass(frozen=True)
class Remark:
    """Something that a reader should know of a node or a value, and why."""

    name: str
    reason: str

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON of one remark."""
        return dict(vars(self))


@dataclass(frozen=True)
class Totals:
    """Sums over the nodes of one graph: MACs, additions of biases and FLOPs by operator, and nodes of which they are not known."""

    macs: Mapping[str, int]
    additions: Mapping[str, int]
    unknown: tuple[Remark, ...]
    flops: Mapping[str, int]
    uncounted: tuple[Remark, ...]
    """Nodes whose FLOPs are not known."""
    by_factors: Mapping[str, int] = field(default_factory=dict)
    """MACs by the stored element types of what is multiplied."""

    @classmethod
    def of(cls, found: Iterable[LayerCost]) -> Totals:
        """Return the sums over `found`."""
        found = list(found)
        unknown = tuple(Remark(layer.node, layer.work.unknown) for layer in found if layer.work.unknown)
        uncounted = tuple(Remark(one.node, one.work.why_uncounted) for one in found if one.work.why_uncounted)
        return cls(
            add_up(one.work.macs for one in found),
            add_up(one.work.additions for one in found),
            unknown,
            add_up(one.work.flops for one in found),
            uncounted,
            add_up({one.factors: one.work.total or 0} for one in found if one.factors),
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON of the MACs."""
        return {
            "total": sum(self.macs.values()),
            "by_operator": dict(self.macs),
            "by_operand_types": dict(self.by_factors),
            "bias_additions": dict(self.additions),
            "unknown": [remark.to_dict() for remark in self.unknown],
        }

    def flops_to_dict(self) -> dict[str, Any]:
        """Return the JSON of the FLOPs."""
        return {
            "total": sum(self.flops.values()),
            "by_operator": dict(self.flops),
            "unknown": [remark.to_dict() for remark in self.uncounted],
        }


@dataclass(frozen=True)
class Traffic:
    """Bytes of activations: what the busiest node reads and writes, what all nodes do, and all activations, each once.

    The busiest node may stand in a body; sums are over the main graph, of what is known: `unknown` are nodes whose traffic is not.
    """

    peak: int
    peak_node: str
    sum: int
    activations: int
    inputs: int
    unknown: int
    weights: int = 0
    """Bytes of constants that all nodes read."""

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON of the traffic."""
        return {
            "peak": {"node": self.peak_node, "bytes": self.peak},
            "sum": self.sum,
            "weights": self.weights,
            "activations": self.activations,
            "activations_with_inputs": self.activations + self.inputs,
            "unknown_nodes": self.unknown,
        }


@dataclass(frozen=True, repr=False)
class Inspection(VerbResult):
    """What a model is made of and what it costs. `unknown` are values whose size only a run can tell."""

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
    modules: tuple[Module, ...] | None = None
    quantised: tuple[Quantisation, ...] = ()
    formulas: WorkFormulas | None = None
    """The work at all sizes of open dimensions; None where none is open."""

    @property
    def totals(self) -> Totals:
        """The sums over the main graph."""
        return Totals.of(layer for layer in self.layers if not layer.body)

    @property
    def bodies(self) -> dict[str, Totals]:
        """The sums over each body (of If, Loop, Scan), for one pass."""
        names = dict.fromkeys(layer.body for layer in self.layers if layer.body)
        return {name: Totals.of(layer for layer in self.layers if layer.body == name) for name in names}

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
            sum(one.bytes or 0 for layer in main for one in layer.outputs),
            sum(one.bytes or 0 for one in self.inputs),
            sum(layer.traffic is None for layer in self.layers),
            sum(layer.weights or 0 for layer in main),
        )

    @property
    def summary(self) -> str:
        """How many nodes, parameters and multiply-accumulates the model has."""
        macs = f"{sum(self.totals.macs.values()):,}" if self.formulas is None else str(self.formulas.macs.total)
        return f"{len(self.layers):,} nodes, {self.parameters.elements:,} parameters, {macs} MACs"

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON of `inspect`."""
        totals, bodies = self.totals, self.bodies
        return {
            "ir_version": self.ir_version,
            "producer": self.producer,
            "opsets": dict(self.opsets),
            "inputs": [one.to_dict() for one in self.inputs],
            "outputs": [one.to_dict() for one in self.outputs],
            "operators": [use.to_dict() for use in self.operators],
            "parameters": self.parameters.to_dict(),
            "macs": {
                **totals.to_dict(),
                "bodies": {name: body.to_dict() for name, body in bodies.items()},
            },
            "flops": {
                **totals.flops_to_dict(),
                "bodies": {name: body.flops_to_dict() for name, body in bodies.items()},
            },
            "traffic": self.traffic.to_dict(),
            "workspaces": summed((layer.node, layer.workspace) for layer in self.layers if layer.workspace != 0),
            "nodes": [layer.to_dict() for layer in self.layers],
            "unknown": [remark.to_dict() for remark in self.unknown],
            "conflicts": [remark.to_dict() for remark in self.conflicts],
            "open": list(self.open),
            "quantisation": [one.to_dict() for one in self.quantised],
            **({"formulas": self.formulas.to_dict()} if self.formulas is not None else {}),
            **({"tree": [module.to_dict() for module in self.modules]} if self.modules is not None else {}),
            **({"training": self.training.to_dict()} if self.training is not None else {}),
        }


def summarise(
    model: ir.Model, *, training: ir.Model | None = None, tree: bool = False, ranges: SizeRanges | None = None
) -> Inspection:
    """Return all that can be said of `model`, which stays as it is, without running it or reading its weights.

    `training` is the same model as a framework would train it: also the bytes of activations that a backward pass of it would keep are
    returned. With `tree`, the sums over modules, too. `ranges` are those of open dimensions.
    Raises ModelError where shapes contradict each other.
    """
    shapes, constants = resolve(model), Constants(model)
    found = layers(model, shapes, constants)
    producer = f"{model.producer_name or ''} {model.producer_version or ''}".strip()
    return Inspection(
        model.ir_version,
        producer,
        dict(sorted(model.graph.opset_imports.items())),
        tuple(tensor(value, shapes, constants) for value in free_inputs(model)),
        tuple(tensor(value, shapes, constants) for value in model.graph.outputs),
        operators(model),
        parameters(model, shapes, constants),
        found,
        tuple(_unknown(model, shapes, constants)),
        tuple(_conflicts(found)),
        None if training is None else kept_for_training(training),
        tuple(_open(model)),
        modules(found, stored_parameters(model, shapes, constants)) if tree else None,
        quantisations(model, shapes, constants),
        work_formulas(model, constants, ranges or {}),
    )


def _open(model: ir.Model) -> Iterator[str]:
    """Yield the options that give every size of the inputs that is open."""
    inputs = free_inputs(model)
    yield from (f"--dim {name}=N" for name in symbols(inputs))
    for value in inputs:
        sizes = None if value.shape is None else [dim if isinstance(dim, int) else dim.value for dim in value.shape]
        if sizes is not None and None in sizes:
            yield f"--shape {value.name}={'x'.join('N' if size is None else str(size) for size in sizes)}"


def _unknown(model: ir.Model, shapes: Shapes, constants: Constants) -> Iterator[Remark]:
    """Yield the values whose size is not known, with the reason."""
    inputs = free_inputs(model)
    declared = set(symbols(inputs))
    free = next((value.name for value in inputs if value.shape is None or not value.shape.is_static()), None)
    values = (value for node in model.graph.all_nodes() for value in node.outputs if value.name)
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


def _conflicts(found: Iterable[LayerCost]) -> Iterator[Remark]:
    """Yield each Reshape that cannot hold what it is given: a size, mostly of the batch, is written into the model."""
    for layer in found:
        if layer.op != "Reshape" or None in {layer.inputs[0].bytes, layer.outputs[0].bytes}:
            continue
        before, after = layer.inputs[0].dims or (), layer.outputs[0].dims or ()
        if layer.inputs[0].bytes != layer.outputs[0].bytes:
            yield Remark(
                layer.node, f"it is to make {_shown(after)} of {_shown(before)}: a size is written into the model"
            )


def _shown(dims: Iterable[object]) -> str:
    return f"[{', '.join(map(str, dims))}]"
