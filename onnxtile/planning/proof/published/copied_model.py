"""Puts the copies that a published plan claims into the model, so that its schedule can be checked there.

Only the claims say where the copies are: the nodes in their order, and the names that each node reads and makes. Every operand must be the
model's own, or follow from it through copies.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import onnx_ir as ir

from onnxtile import keys
from onnxtile.model.shapes import Shapes
from onnxtile.model.walk import bodies_of
from onnxtile.planning.proof.failure import PlanFailure
from onnxtile.planning.proof.published.claims import Claims
from onnxtile.planning.proof.published.evidence import names_of, reads

_CAST_TO_COPY = {ir.DataType.INT2, ir.DataType.UINT2, ir.DataType.INT4, ir.DataType.UINT4}
"""Element types of which onnxruntime has no Identity."""


def with_claimed_copies(model: ir.Model, claims: Claims, shapes: Shapes) -> Shapes | PlanFailure:
    """Put the copies of `claims` into `model` (in place), of which `shapes` are known; return the shapes of all its values.

    Returns a failure where the claims do not describe a run of this model with copies; `model` is then used up.
    """
    try:
        return _Copying(model, claims, shapes).run()
    except _NoRunError as error:
        return PlanFailure(str(error))


class _NoRunError(Exception):
    """The claims do not describe a run of the model, for the reason in the message."""


def _refused(reason: str) -> _NoRunError:
    return _NoRunError(reason)


class _Copying:
    def __init__(self, model: ir.Model, claims: Claims, shapes: Shapes) -> None:
        if claims.movement is None or claims.operands is None or claims.results is None:
            raise _refused("a plan with copies needs movement, operands and results")
        self._model, self._claims, self._shapes = model, claims, shapes
        self._copies = {copy.node: copy for copy in claims.movement.copies or ()}
        graph = model.graph
        made = (value for node in graph for value in node.outputs if value.name)
        self._values = {value.name or "": value for value in (*graph.initializers.values(), *graph.inputs, *made)}
        self._root: dict[ir.Value, ir.Value] = {}
        self._outputs = {id(value): value.name or "" for value in graph.outputs}

    def run(self) -> Shapes:
        graph, claims = self._model.graph, self._claims
        assert claims.operands is not None and claims.results is not None
        self._rename_outputs()
        # A node without a name has that of its first output.
        named: dict[str, list[ir.Node]] = {}
        for node, name in names_of(graph).items():
            named.setdefault(name, []).append(node)
        nodes = []
        if not len(claims.schedule) == len(claims.operands) == len(claims.results):
            raise _refused("operands and results are not those of the schedule")
        for name, operands, results in zip(claims.schedule, claims.operands, claims.results, strict=True):
            if name in self._copies and not named.get(name):
                nodes.append(self._copy(name, operands, results))
                continue
            if not named.get(name):
                raise _refused(f"the schedule has {name!r}, which the graph does not have")
            node = named[name].pop(0)
            self._connect(node, name, operands)
            nodes.append(self._copied_part(node) if name in self._copies else node)
        if any(named.values()):
            left = next(name for name, nodes in named.items() if nodes)
            raise _refused(f"the schedule lacks {left!r}")
        self._hand_out()
        graph.remove(list(graph))
        graph.extend(nodes)
        self._add_function("Copy", "Identity", 1)
        of_roots: dict[ir.Value, list[ir.Value]] = {}
        for copy, root in self._root.items():
            of_roots.setdefault(root, []).append(copy)
        return self._shapes.with_those_of(self._shapes.of_copies(of_roots))

    def _rename_outputs(self) -> None:
        """Give each output of a kernel that the plan copies out the name that the plan has for the kernel's own result."""
        sources = {copy.result: copy.source for copy in self._copies.values()}
        for name in self._outputs.values():
            value, chain = self._values[name], name
            if value.producer() is None or name not in sources:
                continue
            chain = sources[name]
            if chain in self._values:
                raise _refused(f"the output {name!r} is said to be a copy of {chain!r}, another tensor")
            del self._values[name]
            value.name = chain
            self._values[chain] = value

    def _copy(self, name: str, operands: Sequence[str], results: Sequence[str]) -> ir.Node:
        copy = self._copies[name]
        if (tuple(operands), tuple(results)) != ((copy.source,), (copy.result,)) or copy.result in self._values:
            raise _refused(f"the copy {name!r} is listed otherwise than in the schedule, or makes a tensor twice")
        source = self._values.get(copy.source)
        if source is None:
            raise _refused(f"the copy {name!r} reads {copy.source!r}, which is not there")
        root = self._root.get(source, source)
        made = ir.Value(name=copy.result, shape=root.shape, type=root.type)
        self._values[copy.result] = made
        self._root[made] = root
        of_few_bits = self._shapes.dtype(root) in _CAST_TO_COPY
        if of_few_bits:
            self._add_function("CopyBits", "CastLike", 1)
        return ir.Node(keys.DOMAIN, "CopyBits" if of_few_bits else "Copy", [source], outputs=[made], name=name)

    def _copied_part(self, node: ir.Node) -> ir.Node:
        """Return the copy of a part that the Slice `node` is."""
        if node.op_type != "Slice" or node.domain not in {"", "ai.onnx"} or node.attributes or len(node.outputs) != 1:
            raise _refused(f"{node.name or node.op_type!r} is said to be a copy, and is a kernel")
        operands, result = list(node.inputs), node.outputs[0]
        made = ir.Value(name=result.name, shape=result.shape, type=result.type)
        name = f"CopySlice.{len(operands)}"
        self._add_function(name, "Slice", len(operands))
        call = ir.Node(keys.DOMAIN, name, operands, outputs=[made], name=node.name)
        for number in range(len(operands)):
            node.replace_input_with(number, None)
        for reader, number in list(result.uses()):
            reader.replace_input_with(number, made)
        self._values[made.name or ""] = made
        self._root[made] = result
        return call

    def _connect(self, node: ir.Node, name: str, operands: Sequence[str]) -> None:
        """Let `node` read the values called `operands`, which must be copies of its own, and its bodies the latest copies."""
        if len(operands) != len(node.inputs):
            raise _refused(f"the operands of {name!r} are not those of the graph")
        for number, (value, operand) in enumerate(zip(node.inputs, operands, strict=True)):
            found = self._values.get(operand)
            if value is None or found is value:
                continue
            if found is None or self._whole(found) is not self._whole(value):
                raise _refused(f"{name!r} reads {operand!r}, which is not a copy of its operand {value.name!r}")
            node.replace_input_with(number, found)
        captured = [value for value in reads(node) if value not in node.inputs]
        latest = {root: copy for copy, root in self._root.items() if self._is_fast(copy)}
        if captured:
            self._capture(node, {value: latest[value] for value in captured if value in latest})

    def _whole(self, value: ir.Value) -> ir.Value:
        """Return the value of the model with the bytes of `value`."""
        root = self._root.get(value, value)
        return self._root.get(root, root)

    def _is_fast(self, value: ir.Value) -> bool:
        assert self._claims.movement is not None
        name = value.name
        return any(copy.result == name and copy.memory == self._claims.movement.fast for copy in self._copies.values())

    def _capture(self, node: ir.Node, copies: Mapping[ir.Value, ir.Value]) -> None:
        for inner in _inside(node):
            for number, value in enumerate(inner.inputs):
                if value is not None and value in copies:
                    inner.replace_input_with(number, copies[value])
        for body in (body for one in (node, *_inside(node)) for body in bodies_of(one)):
            for number, value in enumerate(body.graph.outputs):
                if value in copies:
                    body.graph.outputs[number] = copies[value]

    def _hand_out(self) -> None:
        """Let the outputs of the graph be the values with their names."""
        outputs = self._model.graph.outputs
        for number, value in enumerate(list(outputs)):
            found = self._values.get(self._outputs[id(value)])
            if found is None or (found is not value and self._root.get(found) is not value):
                raise _refused(f"the output {self._outputs[id(value)]!r} is not made")
            outputs[number] = found

    def _add_function(self, name: str, operator: str, count: int) -> None:
        is_cast = operator == "CastLike"
        imports = self._model.graph.opset_imports
        imports.setdefault(keys.DOMAIN, 1)
        operands, result = [ir.Value(name=f"operand{number}") for number in range(count)], ir.Value(name="result")
        body = ir.Graph(
            operands,
            [result],
            nodes=[ir.Node("", operator, operands * 2 if is_cast else operands, outputs=[result])],
            name=name,
            opset_imports={"": imports.get("", imports.get("ai.onnx", 1))},
        )
        function = ir.Function(keys.DOMAIN, name, graph=body, attributes=())
        function.metadata_props[keys.COPY] = "Identity" if is_cast else operator
        self._model.functions[function.identifier()] = function


def _inside(node: ir.Node) -> Iterator[ir.Node]:
    return (inner for body in bodies_of(node) for inner in body.graph.all_nodes())
