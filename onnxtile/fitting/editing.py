"""A model while it is rewritten: its shapes, its constants, and new nodes with names of their own."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from functools import cached_property
from typing import TypeAlias

import numpy as np
import onnx
import onnx_ir as ir

from onnxtile.model.constants import Constants, made_tensor
from onnxtile.model.graph_writer import Names
from onnxtile.model.modules import ModulePath, module_note, module_path
from onnxtile.model.node_kinds import RandomNodes, dequantises
from onnxtile.model.opset import opset_of
from onnxtile.model.topology import cloned, is_read
from onnxtile.operators.node_view import STANDARD, NodeView, NotApplicable
from onnxtile.operators.reads import AxisLinks
from onnxtile.operators.table import axis_links, factors_of, multiplies_matrices
from onnxtile.shapes.infer import values
from onnxtile.shapes.resolve import Shapes, tensor_bytes
from onnxtile.system.runtime import Array

NodePosition: TypeAlias = tuple[int, ...]
"""The position of a node, compared number by number, so that there is always one between two others."""

_PART = 256
"""A tensor of this part of the largest one does not matter for the bytes alive."""


class ModelEdit:
    """Adds nodes and constants to the main graph of a model in place; new values carry their element type and sizes."""

    def __init__(self, model: ir.Model, shapes: Shapes, constants: Constants | None = None) -> None:
        self.model, self.shapes = model, shapes
        self.constants = Constants(model) if constants is None else constants
        self.names = Names(model)
        self.opset = opset_of(model)
        self._shared: dict[Hashable, ir.Value] = {}

    def view(self, node: ir.Node) -> NodeView:
        """Return a node as the rules of operators see it."""
        return NodeView(node, self.shapes, self.constants, self.opset)

    def links(self, node: ir.Node, axis: int) -> AxisLinks | None:
        """Return the link of each operand along an axis of the first result; None where it cannot be cut."""
        try:
            return axis_links(self.view(node), axis)
        except NotApplicable:
            return None

    def factors(self, node: ir.Node) -> tuple[ir.Value, ir.Value] | None:
        """Return the operands that a product of matrices multiplies, of floats or of integers; None for any other node."""
        places = factors_of(node) if multiplies_matrices(node) else None
        left, right = (None, None) if places is None else (node.inputs[position] for position in places)
        return None if left is None or right is None else (left, right)

    def has_weights(self, node: ir.Node) -> bool:
        """Return whether a node multiplies its operand by a constant matrix."""
        factors = self.factors(node)
        return factors is not None and factors[1] in self.constants

    @cached_property
    def random(self) -> RandomNodes:
        """The nodes that draw random numbers, which stay in their order."""
        return RandomNodes(self.model, self.constants)

    def sizes(self, value: ir.Value) -> tuple[int, ...] | None:
        """Return the sizes of a value, also of a new one; None where they are not known."""
        known = self.shapes.sizes(value)
        if known is None and value.shape is not None and value.shape.is_static():
            known = tuple(int(dim) for dim in value.shape.numpy())
        return known

    def dtype(self, value: ir.Value) -> ir.DataType | None:
        """Return the element type of a value, also of a new one."""
        return self.shapes.dtype(value) or value.dtype

    def bytes(self, value: ir.Value) -> int:
        """Return the bytes of a value that is made at run time; 0 for a graph input, a constant, or where they are not known."""
        if value.producer() is None or value in self.constants:
            return 0
        return tensor_bytes(value, self.shapes) or 0

    def stored(self, value: ir.Value) -> ir.Value:
        """Return the integers of which a DequantizeLinear makes floats inside of kernels; the value itself where it is stored."""
        maker = value.producer()
        is_stored = maker is None or not dequantises(maker) or value in self.constants or value.is_graph_output()
        source = None if maker is None or is_stored else maker.inputs[0]
        return value if source is None else source

    @cached_property
    def least(self) -> int:
        """The bytes below which a tensor does not matter: a part of the largest one that is made at run time."""
        return max((self.bytes(value) for node in self.model.graph for value in node.outputs), default=0) // _PART

    def value(self, stem: str, sizes: Sequence[int], dtype: ir.DataType | None) -> ir.Value:
        """Return a new value."""
        kind = None if dtype is None else ir.TensorType(dtype)
        return ir.Value(name=self.names.fresh(stem), shape=ir.Shape(sizes), type=kind)

    def resized(self, value: ir.Value, axis: int, length: int, ending: str) -> ir.Value:
        """Return a new value named after another one, with its sizes but for the `length` of an axis."""
        sizes = list(self.sizes(value) or ())
        sizes[axis] = length
        return self.value(f"{value.name}/{ending}", sizes, self.dtype(value))

    def constant(self, stem: str, array: Array) -> ir.Value:
        """Return a new constant of the graph."""
        name = self.names.fresh(stem)
        tensor = made_tensor(array, name)
        value = ir.Value(name=name, shape=ir.Shape(array.shape), type=ir.TensorType(tensor.dtype), const_value=tensor)
        self.model.graph.register_initializer(value)
        return value

    def shared(self, stem: str, array: Array) -> ir.Value:
        """Return a constant named after `stem`, one for all that ask for the same elements."""
        key = stem, array.dtype, array.shape, array.tobytes()
        if key not in self._shared:
            self._shared[key] = self.constant(stem, array)
        return self._shared[key]

    def numbers(self, numbers: Sequence[int], stem: str = "numbers") -> ir.Value:
        """Return a constant of whole numbers, one for each list of numbers."""
        return self.shared("/".join([stem, *map(str, numbers)]), np.asarray(numbers, np.int64))

    def ready(self, value: ir.Value) -> ir.Value:
        """Return a value that may be read at any place after its maker; a constant that a node makes becomes one of the graph."""
        if value not in self.constants or value.producer() is None:
            return value
        if value not in self._shared:
            self._shared[value] = self.constant(f"{value.name}", self.constants.array(value))
        return self._shared[value]

    def part(self, stem: str, value: ir.Value, *cuts: tuple[int, int, int]) -> ir.Value:
        """Return the elements of a constant from a start to a stop along each axis of `cuts`, as a new constant.

        Of floats that a DequantizeLinear gives back, the integers are cut. Another one is added, as early as its operands are made: nodes
        before the first one may read it.
        """
        maker, node = value.producer(), self.dequantised_part(stem, value, cuts)
        if maker is not None and node is not None:
            if any(operand is not None and operand.producer() is not None for operand in node.inputs):
                self.model.graph.insert_after(maker, [node])
            else:
                self.model.graph.insert_before(self.model.graph[0], [node])
            return node.outputs[0]
        array = self.constants.array(value)
        part = [slice(None)] * array.ndim
        for axis, start, stop in cuts:
            part[axis] = slice(start, stop)
        return self.constant(stem, array[tuple(part)])

    def dequantised_part(self, stem: str, value: ir.Value, cuts: Sequence[tuple[int, int, int]]) -> ir.Node | None:
        """Return a DequantizeLinear of the parts of integers that `part` gives, which is in no graph; None for any other constant."""
        maker = value.producer()
        linked = [self.links(maker, axis) for axis, *_ in cuts] if maker is not None and dequantises(maker) else []
        if maker is None or not linked or None in linked:
            return None
        operands: list[ir.Value | None] = []
        for index, operand in enumerate(maker.inputs):
            pairs = ((links[index], cut) for links, cut in zip(linked, cuts, strict=True) if links is not None)
            parts = [(link.axis, *cut[1:]) for link, cut in pairs if link is not None]
            if operand is None or not parts:
                operands.append(operand)
            else:
                operands.append(self.part(f"{stem}/{operand.name}", operand, *parts))
        assert operands[0] is not None
        result = self.value(stem, self.sizes(operands[0]) or (), self.dtype(value))
        name, attributes = self.names.fresh(f"{stem}/{maker.op_type}"), maker.attributes.values()
        return ir.Node(maker.domain, maker.op_type, operands, attributes, outputs=[result], name=name)

    def slice_bounds(self, numbers: Sequence[Sequence[int]], stem: str) -> tuple[list[ir.Value], list[ir.Attr]]:
        """Return the further operands and the attributes of a Slice with these starts, stops, axes and perhaps steps."""
        if self.opset < 10:
            names = zip(("starts", "ends", "axes"), numbers, strict=False)
            return [], [ir.AttrInt64s(name, some) for name, some in names]
        return [self.numbers(some, stem) for some in numbers], []

    def pads(self, pads: Sequence[int], stem: str = "numbers") -> tuple[list[ir.Value], list[ir.Attr]]:
        """Return the second operand, or the attribute, of a Pad."""
        if self.opset < 11:
            return [], [ir.AttrInt64s("pads", pads)]
        return [self.numbers(pads, stem)], []

    def again(
        self,
        before: ir.Node | None,
        node: ir.Node,
        inputs: Sequence[ir.Value | None],
        results: Sequence[ir.Value],
        sizes: ir.Value | None = None,
    ) -> None:
        """Add a node that does what `node` does, on parts of its operands; `results` carry the sizes of their parts.

        `sizes` are those of the first result as a constant, which is made where there is none.
        """
        attributes = [
            attribute for attribute in node.attributes.values() if attribute.name not in {"allowzero", "group"}
        ]
        attributes += self._groups(node, results[0])
        op, domain = node.op_type, node.domain
        if op in {"Squeeze", "Unsqueeze", "Flatten"}:
            op, domain, attributes = "Reshape", "", []
        if op in {"Reshape", "Expand"}:
            part = results[0]
            sizes = sizes or self.constant(f"{part.name}/sizes", np.asarray(self.sizes(part), np.int64))
            inputs = [inputs[0], sizes]
        self._insert(before, (domain, op), inputs, results, attributes, module_path(node.name, node.metadata_props))

    def _groups(self, node: ir.Node, result: ir.Value) -> list[ir.Attr]:
        """Return the attribute `group` of a node for a part of its channels: each channel of a depthwise convolution is a group."""
        count = node.attributes.get_int("group", 1)
        whole, part = self.sizes(node.outputs[0]), self.sizes(result)
        if count == 1 or not whole or not part:
            return [attribute for attribute in node.attributes.values() if attribute.name == "group"]
        return [ir.AttrInt64("group", count * part[1] // whole[1])]

    def add(
        self,
        before: ir.Node | None,
        op: str,
        inputs: Sequence[ir.Value | None],
        result: ir.Value,
        attributes: Iterable[ir.Attr] = (),
    ) -> ir.Value:
        """Add a node of the standard domain before the node `before`, or at the end; return its `result`."""
        self._insert(before, ("", op), inputs, [result], attributes)
        return result

    def _insert(
        self,
        before: ir.Node | None,
        operator: tuple[str, str],
        inputs: Sequence[ir.Value | None],
        results: Sequence[ir.Value],
        attributes: Iterable[ir.Attr],
        path: ModulePath = (),
    ) -> None:
        """Add a node inside the modules `path`; a node that no module has is outside of all."""
        name = self.names.fresh(f"{results[0].name}/{operator[1]}")
        notes = module_note(path, name)
        node = ir.Node(*operator, inputs, attributes, outputs=results, name=name, metadata_props=notes)
        if before is None:
            self.model.graph.append(node)
        else:
            self.model.graph.insert_before(before, node)

    def join(
        self, before: ir.Node | None, value: ir.Value, parts: Sequence[ir.Value], axis: int, ending: str
    ) -> ir.Value:
        """Add a Concat of the `parts` of a value; return its result, which is named after the value."""
        whole = self.value(f"{value.name}/{ending}", self.sizes(value) or (), self.dtype(value))
        return self.add(before, "Concat", parts, whole, [ir.AttrInt64("axis", axis)])

    def replace(self, old: ir.Value, new: ir.Value) -> None:
        """Let readers of `old` and the outputs of the graph take `new`, which gets the name of `old`. Do not pass an input of the graph."""
        name = old.name
        old.replace_all_uses_with(new, replace_graph_outputs=True)
        old.name, new.name = None, name

    def drop_unread(self) -> None:
        """Remove the nodes whose results nothing reads."""
        for node in reversed(list(self.model.graph)):
            if not any(map(is_read, node.outputs)):
                self.model.graph.remove(node, safe=True)


def copy_of(model: ir.Model, shapes: Shapes) -> tuple[ir.Model, Shapes]:
    """Return a copy of a model, and the shapes of its values."""
    copy = cloned(model)
    return copy, shapes.of_copies(dict(zip(values(model), values(copy), strict=True)))


# Sizes that are known are constants: exporters compute bounds of slices, and sizes of reshapes, from the shapes of tensors.


def write_known_sizes(edit: ModelEdit) -> list[ir.Node]:
    """Let readers of each Shape and Size read constants; return these nodes, which are gone. The constants are equal to their results."""
    changed = []
    for node in list(edit.model.graph):
        result = node.outputs[0]
        if node.op_type not in {"Shape", "Size"} or node.domain not in STANDARD or result.is_graph_output():
            continue
        sizes = None if node.inputs[0] is None else edit.sizes(node.inputs[0])
        if sizes is None or result in edit.constants:
            continue
        part = slice(node.attributes.get_int("start", 0), node.attributes.get_int("end", len(sizes)))
        array = np.asarray(np.prod(sizes, dtype=np.int64) if node.op_type == "Size" else sizes[part], np.int64)
        result.replace_all_uses_with(edit.constant(f"{result.name}/known", array))
        edit.model.graph.remove(node, safe=True)
        changed.append(node)
    return changed


# Optional results that nothing reads: the mask of Dropout, the indices of MaxPool. They take bytes while their kernel runs.


def leave_out_unread(edit: ModelEdit) -> list[ir.Node]:
    """Leave out optional results that nothing reads; return the nodes that made them."""
    readers: dict[ir.Node, None] = {}
    for node in edit.model.graph:
        for number, value in enumerate(node.outputs):
            if number and value.name and not is_read(value) and _is_optional(node, number, edit.opset):
                value.name = ""
                readers[node] = None
    return list(readers)


def _is_optional(node: ir.Node, number: int, opset: int) -> bool:
    if node.domain not in STANDARD or not onnx.defs.has(node.op_type):
        return False
    results = onnx.defs.get_schema(node.op_type, opset).outputs
    return number < len(results) and results[number].option == onnx.defs.OpSchema.FormalParameterOption.Optional
