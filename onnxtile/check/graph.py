"""The facts of a model for the check: its graph, shapes and constants."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain

import onnx
import onnx_ir as ir

from onnxtile.check.operators import STANDARD, WITH_BODIES
from onnxtile.declare.plan_document import UNSAID, PlanFailure, PlannedBuffer
from onnxtile.model import keys
from onnxtile.model.binding import Unbound, free_inputs
from onnxtile.model.constants import Constants
from onnxtile.model.topology import bodies_of, values_in
from onnxtile.model.validity import skeleton
from onnxtile.shapes.opened_calls import inside_of
from onnxtile.shapes.resolve import Shapes

_NO_FIXED_SIZE = frozenset({ir.DataType.UNDEFINED, ir.DataType.STRING})

_CONTAINERS = {ir.SequenceType: "sequence", ir.OptionalType: "optional", ir.SparseTensorType: "sparse tensor"}

_WIDEST = 16
"""Bytes: no element needs a larger alignment."""


# A row at one size of each dimension.


@dataclass(frozen=True)
class SizedBuffer(PlannedBuffer):
    """A row of a plan over ranges at one size of each dimension; `most` are its bytes at the largest sizes."""

    most: int = UNSAID


@dataclass(frozen=True)
class GraphFacts:
    """A model, the shapes and element types of its values, and its constants."""

    model: ir.Model
    shapes: Shapes
    constants: Constants
    next_states: dict[ir.Value, ir.Value] = field(default_factory=dict)
    """The output by the input of each state of the model, and of each carried value with one address of the bodies checked so far."""
    spread: Mapping[ir.Value, tuple[int, int]] = field(default_factory=dict)
    """Tensors whose rows are further apart than they are long, in the bytes of a state that grows: the number of rows, and their distance
    in bytes."""

    @cached_property
    def open_calls(self) -> frozenset[ir.Graph]:
        """The graphs of calls of functions that are planned like bodies; they read the operands of the call where these lie."""
        found = (inside_of(node) for node in self.model.graph.all_nodes())
        return frozenset(graph for graph in found if graph is not None)

    @cached_property
    def unbound(self) -> Unbound:
        """The unbound dimensions of the model's inputs."""
        return Unbound.of(free_inputs(self.model))

    @property
    def opset(self) -> int:
        """The version of the standard operators."""
        return opset(self.model)

    def is_standard(self, node: ir.Node) -> bool:
        """Return whether `node` is an operator of the ONNX specification."""
        return node.domain in STANDARD and node.op_identifier() not in self.model.functions

    def bytes(self, value: ir.Value) -> int | None:
        """Return the bytes of `value`, elements below a byte packed; None where they are not known or not fixed."""
        if value not in self._bytes:
            shape, dtype = self.shapes.sizes(value), self.shapes.dtype(value)
            is_fixed = shape is not None and dtype is not None and dtype not in _NO_FIXED_SIZE
            self._bytes[value] = (math.prod(shape) * dtype.bitwidth + 7) // 8 if is_fixed else None  # type: ignore[arg-type, union-attr]
        return self._bytes[value]

    @cached_property
    def _bytes(self) -> dict[ir.Value, int | None]:
        return {}

    def alignment(self, value: ir.Value) -> int:
        """Return the bytes that the address of `value` must be a multiple of, whatever the alignment of the plan."""
        dtype = self.shapes.dtype(value)
        return 1 if dtype is None or dtype in _NO_FIXED_SIZE else max(1, min(dtype.bitwidth // 8, _WIDEST))

    def is_bound(self, values: Iterable[ir.Value | None]) -> bool:
        """Return whether one of `values` may be smaller in a run than its shape says."""
        return any(value is not None and self.shapes.is_bound(value) for value in values)

    def numbers(self, value: ir.Value | None) -> list[int] | None:
        """Return the elements of the constant `value`; None for a value that is not constant."""
        if value is None or value not in self.constants:
            return None
        return [int(number) for number in self.constants.array(value).reshape(-1)]

    def declared_over(self, node: ir.Node) -> frozenset[int]:
        """Return the indices of the operands that a meta-op may write over, as its pattern declares."""
        function = self.model.functions.get(node.op_identifier())
        text = "" if function is None else function.metadata_props.get(keys.IN_PLACE, "")
        return frozenset(json.loads(text)) if text else frozenset()

    def container(self, value: ir.Value) -> str | None:
        """Return the kind of a `value` that is not a tensor: "sequence", "optional", "sparse tensor"; None for a tensor."""
        if value.type is not None:
            return _container(value.type)
        is_untold = self.shapes.dtype(value) is None or self._makes_optionals
        return self._inferred.get(value) if is_untold else None

    @cached_property
    def _makes_optionals(self) -> bool:
        """Whether the model has optionals, which some engines take for the tensors in them."""
        if any(isinstance(value.type, ir.OptionalType) for value in self.model.graph.inputs):
            return True
        called = (function.all_nodes() for function in self.model.functions.values())
        return any(node.op_type == "Optional" for node in chain(self.model.graph.all_nodes(), *called))

    @cached_property
    def _inferred(self) -> dict[ir.Value, str]:
        """The kinds of the values that are not tensors, by onnx's type inference. A body may have the names of another."""
        try:
            graph = onnx.shape_inference.infer_shapes(skeleton(self.model)).graph
        except (onnx.shape_inference.InferenceError, RuntimeError, ValueError):
            return {}
        found, todo = dict[ir.Value, str](), [(self.model.graph, graph)]
        while todo:
            own, typed = todo.pop()
            infos = (*typed.value_info, *typed.output)
            kinds = {info.name: _container(ir.serde.deserialize_type_proto_for_type(info.type)) for info in infos}
            for value in (value for node in own for value in node.outputs if value.name):
                kind = kinds.get(value.name or "")
                if kind is not None:
                    found[value] = kind
            bodies = (body for node in own for _, body in graphs_of(node))
            attributes = [attribute for node in typed.node for attribute in node.attribute]
            inner = (body for one in attributes for body in ([one.g] if one.HasField("g") else one.graphs))
            todo.extend(zip(bodies, inner, strict=True))
        return found


def entered_bodies(node: ir.Node, model: ir.Model) -> dict[str | None, ir.Graph]:
    """Return the planned bodies of `node`, by attribute; None is the body of the function that it calls."""
    inside = inside_of(node)
    if inside is not None:
        return {None: inside}
    if node.op_identifier() in model.functions:
        return {}
    if node.op_type not in WITH_BODIES or node.domain not in STANDARD:
        return {}
    if node.op_type == "Scan" and opset(model) < 9:
        return {}  # such a Scan runs over a batch, as one kernel
    return {name: body for name, body in graphs_of(node) if name is not None}


def opset(model: ir.Model) -> int:
    """Return the version of the standard operators in `model`."""
    imports = model.graph.opset_imports
    return imports.get("", imports.get("ai.onnx", 1))


def _container(type_: ir.TypeProtocol | None) -> str | None:
    return None if type_ is None else _CONTAINERS.get(type(type_))


def graphs_of(node: ir.Node) -> Iterator[tuple[str | None, ir.Graph]]:
    """Yield the graphs that the attributes of `node` hold, with the name of the attribute; None for one of a list of graphs."""
    return ((body.attribute if body.position is None else None, body.graph) for body in bodies_of(node))


def home(value: ir.Value) -> ir.Graph | ir.Function | None:
    """Return the graph in which `value` is an input, an initializer or made."""
    maker = value.producer()
    return value.graph if maker is None else maker.graph


def reads(node: ir.Node) -> dict[ir.Value, None]:
    """Return the values that `node` and the bodies in it read of the graphs around them, each once."""
    found = {value: None for value in node.inputs if value is not None}
    inside = [body for _, body in graphs_of(node)]
    if not inside:
        return found
    known = set(inside)
    while inside:
        body = inside.pop()
        for inner in body:
            found.update((value, None) for value in inner.inputs if value is not None)
            further = [graph for _, graph in graphs_of(inner)]
            known.update(further)
            inside += further
        found.update((value, None) for value in body.outputs if value is not None)
    return {value: None for value in found if home(value) not in known}


def names_of(nodes: Iterable[ir.Node]) -> dict[ir.Node, str]:
    """Return the name of each of `nodes` in a plan: its name, or its first output where that is empty or repeated."""
    nodes = list(nodes)
    seen: set[str | None] = set()
    repeated = {node.name for node in nodes if node.name in seen or seen.add(node.name)}  # type: ignore[func-returns-value]
    return {
        node: (node.name if node.name not in repeated else None) or first_output(node) or node.name or node.op_type
        for node in nodes
    }


def first_output(node: ir.Node) -> str:
    """Return the first output of `node` that has a name; empty where it has none."""
    return next((value.name for value in node.outputs if value.name), "")


def made_in(body: ir.Graph) -> Iterator[ir.Value]:
    """Yield the inputs of `body` and the named values made in it, at any depth."""
    return (value for value in values_in(body) if value.name)


# When each value of a graph is made and read, by a walk over its nodes in the order of the plan.

_NAMED = 3
"""The most nodes in a message."""


@dataclass(frozen=True)
class RunOrder:
    """The nodes of `graph` in the order in which they run, the step of each, and its name in the plan.

    `kept` values must outlive the run, `given` values exist before it. Values `apart` share bytes with nothing in the whole run. The bytes
    of values in `throughout` are held in all steps.
    """

    graph: ir.Graph
    nodes: tuple[ir.Node, ...]
    steps: tuple[int, ...]
    names: tuple[str, ...]
    kept: frozenset[ir.Value]
    given: tuple[ir.Value, ...]
    apart: frozenset[ir.Value] = frozenset()
    throughout: frozenset[ir.Value] = frozenset()

    @cached_property
    def step_of(self) -> dict[ir.Node, int]:
        """The step of each node."""
        return dict(zip(self.nodes, self.steps, strict=True))

    @cached_property
    def name_of(self) -> dict[ir.Node, str]:
        """The name of each node in the plan."""
        return dict(zip(self.nodes, self.names, strict=True))

    @cached_property
    def reads(self) -> dict[ir.Node, dict[ir.Value, None]]:
        """The values that each node reads, also in its bodies."""
        return {node: reads(node) for node in self.nodes}

    @cached_property
    def readers(self) -> dict[ir.Value, list[ir.Node]]:
        """The nodes that read each value, in the order in which they run."""
        found: dict[ir.Value, list[ir.Node]] = {}
        for node, values in self.reads.items():
            for value in values:
                found.setdefault(value, []).append(node)
        return found

    @cached_property
    def handed_out(self) -> frozenset[ir.Value]:
        """The outputs of the graph."""
        return frozenset(self.graph.outputs)

    def users(self, value: ir.Value) -> list[ir.Node]:
        """Return the last users of `value`: its readers, or its producer if it has none."""
        maker = value.producer()
        return self.readers.get(value) or ([] if maker is None else [maker])

    @property
    def end(self) -> int:
        """The last step; 0 where there is none."""
        return self.steps[-1] if self.steps else 0

    def first(self, value: ir.Value) -> int:
        """Return the first step of the live range of `value`, which this graph makes or is given."""
        maker = value.producer()
        return 0 if maker is None or value in self.apart else self.step_of[maker]

    def last(self, value: ir.Value) -> int:
        """Return the last step of the live range of `value`."""
        if value in self.kept | self.apart or (value in self.throughout and value.producer() is None):
            return self.end
        readers = self.readers.get(value)
        return self.step_of[readers[-1]] if readers else self.first(value)


def timeline(
    graph: ir.Graph,
    schedule: Sequence[str],
    steps: Sequence[int],
    kept: frozenset[ir.Value],
    given: tuple[ir.Value, ...],
    apart: frozenset[ir.Value] = frozenset(),
    throughout: frozenset[ir.Value] = frozenset(),
) -> RunOrder | list[PlanFailure]:
    """Return the order in which the nodes of `graph` run, or the faults of `schedule` and `steps` that are not an order of them."""
    waiting: dict[str, list[ir.Node]] = {}
    for node, name in names_of(graph).items():
        waiting.setdefault(name, []).append(node)
    nodes, unknown = [], []
    for name in schedule:
        if waiting.get(name):
            nodes.append(waiting[name].pop(0))
        else:
            unknown.append(name)
    missing = [name for name, left in waiting.items() if left]
    failures = []
    if unknown:
        failures.append(
            PlanFailure(f"the schedule has {_listed(unknown)}, which the graph does not have, or has fewer times")
        )
    if missing:
        failures.append(PlanFailure(f"the schedule lacks {_listed(missing)}"))
    if len(steps) != len(schedule):
        failures.append(PlanFailure(f"there are {len(steps)} steps for the {len(schedule)} nodes of the schedule"))
    if failures:
        return failures
    found = RunOrder(graph, tuple(nodes), tuple(steps), tuple(schedule), kept, given, apart, throughout)
    return list(_disorder(found)) or found


def _disorder(line: RunOrder) -> Iterator[PlanFailure]:
    """Yield each step that does not follow the one before, and each node that runs before a value it reads is made."""
    before = -1
    for name, step in zip(line.names, line.steps, strict=True):
        if step not in {before, before + 1} or step < 0:
            yield PlanFailure(
                f"step {step} of {name!r} follows step {before}"
                if before >= 0
                else f"{name!r} is in step {step}, not 0"
            )
            return
        before = step
    place = {node: number for number, node in enumerate(line.nodes)}
    for number, node in enumerate(line.nodes):
        for value in line.reads[node]:
            maker = value.producer()
            if maker is None or maker not in place:
                continue
            if place[maker] >= number or line.steps[place[maker]] >= line.steps[number]:
                reason = f"{line.names[number]!r} reads {value.name!r}, which {line.names[place[maker]]!r} makes later"
                yield PlanFailure(reason, (value.name or "",), line.steps[number])


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(map(repr, names[:_NAMED])) + more
