"""Cuts out each different site of a lowering: the call as it was, and the operators it became, as two models."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

import onnx_ir as ir

from onnxtile.fusion.lowering import FactsTable, Literal, Made, Operand, Replacement
from onnxtile.fusion.lowering_driver.write import attributes, literal_value


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
    same: tuple[str, ...] = ()
    """The names of further calls that are the same."""


class Evidence:
    """Collects the parts of a lowering, equal ones once."""

    def __init__(self, model: ir.Model, facts: FactsTable) -> None:
        self._model = model
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
        self._parts[key] = SitePair(
            name, meta_op, before, after, constants, frozenset(v.name or "" for v in proof.twice)
        )

    def _signature(self, call: ir.Node, nodes: list[ir.Node], inputs: list[ir.Value], proof: Replacement) -> object:
        numbers = {value: i for i, value in enumerate(inputs)}
        known = []
        for value in inputs:
            argument = self._facts.argument(value)
            array = None if argument.array is None else argument.array.tobytes()
            known.append((argument.dtype, argument.dims, array))
        above = tuple(
            (n.op_identifier(), repr(sorted((a.name, repr(a.value)) for a in n.attributes.values()))) for n in nodes
        )
        steps = tuple(
            (s.op, s.domain, repr(s.attributes), tuple(_key(o, numbers) for o in s.inputs)) for s in proof.steps
        )
        return (call.op_identifier(), above, tuple(known), steps)

    def _before(self, call: ir.Node, nodes: list[ir.Node], inputs: list[ir.Value]) -> ir.Model:
        copies = {value: self._copy(value) for value in inputs}
        body = []
        for node in (*nodes, call):
            made = [ir.Value(name=value.name) for value in node.outputs]
            operands = [None if v is None else copies[v] for v in node.inputs]
            values = node.attributes.values()
            body.append(ir.Node(node.domain, node.op_type, operands, values, overload=node.overload, outputs=made))
            copies.update(zip(node.outputs, made, strict=True))
        return self._model_of([copies[v] for v in inputs], [copies[v] for v in call.outputs], body, [], functions=True)

    def _after(self, call: ir.Node, inputs: list[ir.Value], proof: Replacement) -> ir.Model:
        copies = {value: self._copy(value) for value in inputs}
        body: list[ir.Node] = []
        literals: list[ir.Value] = []
        for step in proof.steps:
            operands: list[ir.Value | None] = []
            for operand in step.inputs:
                if isinstance(operand, Literal):
                    literals.append(literal_value(operand, f"literal {len(literals)}"))
                    operands.append(literals[-1])
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
        return self._model_of([copies[v] for v in inputs], outputs, body, literals, functions=False)

    def _copy(self, value: ir.Value) -> ir.Value:
        argument = self._facts.argument(value)
        shape = None if argument.dims is None else ir.Shape(argument.dims)
        return ir.Value(name=value.name, type=ir.TensorType(argument.dtype or ir.DataType.FLOAT), shape=shape)

    def _model_of(
        self,
        inputs: list[ir.Value],
        outputs: list[ir.Value],
        body: list[ir.Node],
        literals: list[ir.Value],
        *,
        functions: bool,
    ) -> ir.Model:
        opsets = {**self._model.graph.opset_imports, **{node.domain: 1 for node in body if node.domain}}
        graph = ir.Graph(inputs, outputs, nodes=body, initializers=literals, opset_imports=opsets, name="site")
        held = [function.clone() for function in self._model.functions.values()] if functions else []
        return ir.Model(graph, ir_version=max(10, self._model.ir_version), functions=held)


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
