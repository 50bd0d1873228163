"""Cuts out each different site of a lowering: the call as it was, and the operators it became, as two models."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

import onnx
import onnx_ir as ir

from onnxtile.fusion.lowering import FactsTable, Literal, Made, Operand, Replacement
from onnxtile.fusion.lowering_driver.write import attributes, literal_value
from onnxtile.model.submodel import Submodels, tensor_type


@dataclass(frozen=True)
class SitePair:
    """A site alone: as a model of the call, and as one of the operators; `constants` are the inputs that are no free ones."""

    call: str
    meta_op: str
    before: ir.Model = field(repr=False)
    after: ir.Model = field(repr=False)
    constants: frozenset[str] = field(repr=False)
    twice: frozenset[str] = field(default=frozenset(), repr=False)
    """Inputs whose last axis is one vector twice."""
    rounds: bool = False
    """Whether the outputs are quantised anew, and may be one step off."""
    same: tuple[str, ...] = ()
    """The names of further calls that are the same."""
    key: object = field(default=None, repr=False)
    """What two sites that are the same have in common."""


class Evidence:
    """Collects the parts of a lowering, equal ones once."""

    def __init__(self, model: ir.Model, facts: FactsTable) -> None:
        self._cut = Submodels(model)
        self._facts = facts
        self._parts: dict[object, SitePair] = {}

    @property
    def parts(self) -> Iterable[SitePair]:
        """The parts found so far."""
        return self._parts.values()

    def add(self, call: ir.Node, name: str, meta_op: str, proof: Replacement) -> None:
        """Keep the site of `call`, which is still in the graph, and the operators that it becomes."""
        given = dict.fromkeys(o for step in proof.steps for o in step.inputs if isinstance(o, ir.Value))
        nodes, inputs = _slice(call, given)
        key = self._signature(call, nodes, inputs, proof)
        if key in self._parts:
            self._parts[key] = replace(self._parts[key], same=(*self._parts[key].same, name))
            return
        before = self._before(call, nodes, inputs)
        after = self._after(call, inputs, proof)
        constants = frozenset(v.name or "" for v in inputs if self._facts.argument(v).constant)
        twice = frozenset(v.name or "" for v in proof.twice)
        self._parts[key] = SitePair(name, meta_op, before, after, constants, twice, proof.rounds, key=key)

    def _signature(self, call: ir.Node, nodes: list[ir.Node], inputs: list[ir.Value], proof: Replacement) -> object:
        numbers = {value: i for i, value in enumerate(inputs)}
        known = []
        for value in inputs:
            argument = self._facts.argument(value)
            array = None if argument.array is None else argument.array.tobytes()
            known.append((argument.dtype, argument.dims, array))
        above = tuple(
            (n.op_identifier(), repr(sorted((a.name, repr(a.value)) for a in n.attributes.values())))
            for n in (*nodes, call)
        )
        steps = tuple(
            (s.op, s.domain, repr(s.attributes), tuple(_key(o, numbers) for o in s.inputs)) for s in proof.steps
        )
        return (above, tuple(known), steps)

    def _before(self, call: ir.Node, nodes: list[ir.Node], inputs: list[ir.Value]) -> ir.Model:
        return ir.from_proto(self._cut.of([*nodes, call], {v: self._type(v) for v in inputs}, call.outputs))

    def _after(self, call: ir.Node, inputs: list[ir.Value], proof: Replacement) -> ir.Model:
        copies = {value: ir.Value(name=value.name) for value in inputs}
        body: list[ir.Node] = []
        for step in proof.steps:
            operands: list[ir.Value | None] = []
            for operand in step.inputs:
                if isinstance(operand, Literal):
                    operands.append(literal_value(operand, f"literal {len(body)} {len(operands)}"))
                elif isinstance(operand, Made):
                    operands.append(body[operand.step].outputs[operand.output])
                else:
                    operands.append(None if operand is None else copies[operand])
            made = step.values()
            for i, value in enumerate(made):
                value.name = value.name if value.name == "" else f"step {len(body)} {i}"
            body.append(ir.Node(step.domain, step.op, operands, attributes(step), outputs=made))
        outputs = [body[made.step].outputs[made.output] for made in proof.outputs]
        for value, old in zip(outputs, call.outputs, strict=True):
            value.name = old.name
        fed = {copies[value]: self._type(value) for value in inputs}
        return ir.from_proto(self._cut.of(body, fed, outputs))

    def _type(self, value: ir.Value) -> onnx.TypeProto:
        argument = self._facts.argument(value)
        return tensor_type(argument.dtype or ir.DataType.FLOAT, argument.dims)


def _key(operand: Operand, numbers: Mapping[ir.Value, int]) -> object:
    if isinstance(operand, ir.Value):
        return numbers[operand]
    if isinstance(operand, Literal):
        return operand.dtype, operand.array.shape, operand.array.tobytes()
    return operand


def _slice(call: ir.Node, given: Iterable[ir.Value]) -> tuple[list[ir.Node], list[ir.Value]]:
    """Return the nodes from the values `given` to `call`, in order, and what they and `call` read besides."""
    stops = set(given)
    nodes: dict[ir.Node, None] = {}
    inputs: dict[ir.Value, None] = dict.fromkeys(given)

    def reaches(value: ir.Value | None) -> bool:
        """Tell whether `value` is computed from what is given, over a few nodes; those are noted."""
        if value is None:
            return False
        if value in stops:
            return True
        node = value.producer()
        if node is None or len(node.inputs) > 2 or node.graph is not call.graph:
            return False
        if node.op_type not in {"Cast", "Transpose", "Reshape", "Mul"}:
            return False
        if not any([reaches(v) for v in node.inputs]):
            return False
        nodes[node] = None
        inputs.update(dict.fromkeys(v for v in node.inputs if v is not None and v.producer() not in nodes))
        return True

    for value in call.inputs:
        if value is not None and not reaches(value):
            inputs[value] = None
    made = {value for node in nodes for value in node.outputs}
    return list(nodes), [value for value in inputs if value not in made]
