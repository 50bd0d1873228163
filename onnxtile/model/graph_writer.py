"""New nodes and constants of a model: names that are free, sizes, and Slice, Split and Pad in the form that the opset has."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import field

import numpy as np
import onnx_ir as ir

from onnxtile.model.modules import ModulePath, module_note
from onnxtile.model.topology import all_nodes, all_values
from onnxtile.operators.node_view import Dims
from onnxtile.system.dataclass import dataclass
from onnxtile.system.runtime import Array


class Names:
    """The names of a model: the name of each node, and the names that are still free.

    Values and nodes of all graphs count, since a body sees the values of the graphs around it.
    """

    def __init__(self, model: ir.Model) -> None:
        self._nodes = Counter(node.name for node in all_nodes(model))
        self._there = {name for name in self._nodes if name}
        self._there.update(value.name for value in all_values(model) if value.name)
        self._taken: set[str] = set()
        self._numbers: dict[str, int] = {}

    def name_of(self, node: ir.Node) -> str:
        """Return the name of `node`, or its first output where the name is empty or repeated."""
        if node.name and self._nodes[node.name] == 1:
            return node.name
        return next((value.name for value in node.outputs if value.name), "")

    def within(self, node: ir.Node) -> str:
        """Return the name of `node` within its function."""
        return node.name or next((value.name for value in node.outputs if value.name), "")

    def fresh(self, wanted: str) -> str:
        """Return `wanted`, followed by a number where the model uses that name already, and take it."""
        # All numbers up to the last one given for `wanted` are taken: a search from 1 would grow with each name.
        number = self._numbers.get(wanted, 0)
        name = f"{wanted}_{number}" if number else wanted
        while name in self._taken or name in self._there:
            number += 1
            name = f"{wanted}_{number}"
        self._numbers[wanted] = number
        self._taken.add(name)
        return name


# Constants read one after another, so that the bytes of one only are in memory.


class ConstantReader:
    """The one constant whose bytes are at hand: blocks are read when they are written, one constant after another."""

    def __init__(self) -> None:
        self._tensor: ir.TensorProtocol | None = None
        self._array: Array | None = None

    def array(self, tensor: ir.TensorProtocol) -> Array:
        """Return the elements of `tensor`, and keep them until another constant is read; the mapped file of the last one is closed."""
        if self._array is None or self._tensor is not tensor:
            self._let_go()
            self._tensor, self._array = tensor, tensor.numpy()
        return self._array

    def _let_go(self) -> None:
        self._array = None
        if isinstance(self._tensor, ir.ExternalTensor):
            # A mapped file with other readers stays open until the last of them ends.
            with suppress(BufferError):
                self._tensor.release()


SplitPart = tuple[str, Dims]
"""The stem of an output's name, and its dimensions."""
GridPlace = dict[str, int]
"""The numbers, by letters, that tell nodes of one stem apart: of the stretch along "m", "k" and "n", as far as the node has one."""


def label(stem: str, position: GridPlace) -> str:
    """Return a readable name for something at `position`: tile_m0_k1_n2."""
    return "_".join((stem, *(f"{axis}{index}" for axis, index in position.items())))


@dataclass
class GraphWriter:
    """Collects new nodes and constants in the order in which they are made. Their names begin with that of `site`. No graph is changed."""

    site: str
    opset: int
    names: Names = field(repr=False)
    reader: ConstantReader = field(default_factory=ConstantReader, repr=False)
    nodes: list[ir.Node] = field(default_factory=list)
    constants: list[ir.Value] = field(default_factory=list)
    sizes: list[ir.Value] = field(default_factory=list)
    """Those of the constants that are sizes, which Split, Pad and Slice take."""
    path: ModulePath = ()
    """The modules around the site."""
    _shapes: dict[Dims, ir.Shape] = field(default_factory=dict, repr=False)
    _known: dict[tuple[int, ...], ir.Value] = field(default_factory=dict, repr=False)

    def node(
        self,
        op: str,
        inputs: Sequence[ir.Value | None],
        stem: str,
        position: GridPlace,
        dims: Dims,
        attributes: Iterable[ir.Attr] = (),
        dtype: ir.DataType | None = None,
    ) -> ir.Value:
        """Write a node with one output of size `dims`, of the usual type by default; return the output, which is called as the node."""
        name = self.fresh(label(stem, position))
        output = self._value(name, dims, dtype or self.usual_dtype)
        self._add(op, inputs, attributes, [output], name, (stem, position))
        return output

    def split(
        self, operand: tuple[ir.Value, ir.DataType], axis: int, stem: str, parts: Sequence[SplitPart], sizes: str
    ) -> list[ir.Value]:
        """Write a Split of a value of some type along `axis` into `parts` of known sizes there.

        The sizes are an input since opset 13, a constant called `sizes`, an attribute before.
        """
        value, dtype = operand
        widths = [size for size in (dims[axis] for _, dims in parts) if isinstance(size, int)]
        inputs, attributes = [value], [ir.AttrInt64("axis", axis)]
        if self.opset < 13:
            attributes.append(ir.AttrInt64s("split", widths))
        else:
            inputs.append(self.int64s(widths, sizes))
        outputs = [self._value(self.fresh(name), dims, dtype) for name, dims in parts]
        self._add("Split", inputs, attributes, outputs, self.fresh(stem), (stem, {}))
        return outputs

    def pad(
        self,
        operand: tuple[ir.Value, ir.DataType],
        after: list[int],
        stem: str,
        position: GridPlace,
        dims: Dims,
        fill: ir.Value | None,
        *,
        before: Sequence[int] = (),
    ) -> ir.Value:
        """Write a Pad of a value of some type by so many elements around each axis: zeros, or the element that `fill` holds.

        The numbers are an input since opset 11, an attribute before; `fill` is only for opsets that have it as an input.
        """
        value, dtype = operand
        pads = [*(before or [0] * len(after)), *after]
        if self.opset < 11:
            return self.node("Pad", [value], stem, position, dims, [ir.AttrInt64s("pads", pads)], dtype)
        sizes = self.int64s(pads, f"{label(stem, position)}_sizes")
        return self.node("Pad", [value, sizes, *([] if fill is None else [fill])], stem, position, dims, (), dtype)

    def slice(
        self,
        operand: tuple[ir.Value, ir.DataType],
        index: Mapping[int, slice],
        stem: str,
        position: GridPlace,
        dims: Dims,
    ) -> ir.Value:
        """Write a Slice of a value of some type: for each axis in `index` that range, of the others all. An input since opset 10."""
        value, dtype = operand
        content = {
            "starts": [part.start for part in index.values()],
            "ends": [part.stop for part in index.values()],
            "axes": list(index),
        }
        if self.opset < 10:
            attributes = [ir.AttrInt64s(name, numbers) for name, numbers in content.items()]
            return self.node("Slice", [value], stem, position, dims, attributes, dtype)
        name = label(stem, position)
        operands = [self.int64s(numbers, f"{name}_{part}") for part, numbers in content.items()]
        return self.node("Slice", [value, *operands], stem, position, dims, (), dtype)

    def constant(self, tensor: ir.TensorProtocol, stem: str) -> ir.Value:
        """Write an initializer that holds `tensor`."""
        tensor.name = name = self.fresh(stem)
        shape = ir.Shape(tensor.shape.numpy())
        value = ir.Value(name=name, shape=shape, type=ir.TensorType(tensor.dtype), const_value=tensor)
        self.constants.append(value)
        return value

    def cut(self, read: Callable[[], Array], dtype: ir.DataType, dims: Dims, stem: str) -> ir.Value:
        """Write an initializer whose elements `read` returns when it is saved."""
        return self.constant(ir.LazyTensor(lambda: ir.Tensor(read(), dtype), dtype, ir.Shape(dims)), stem)

    def int64s(self, sizes: list[int], stem: str) -> ir.Value:
        """Return an initializer of these sizes, which stay inline when weights are external; equal sizes share one."""
        key = tuple(sizes)
        if key not in self._known:
            self._known[key] = self.constant(ir.Tensor(np.asarray(sizes, np.int64)), stem)
            self.sizes.append(self._known[key])
        return self._known[key]

    def fresh(self, stem: str) -> str:
        """Return a name for something of this site that the model does not use yet."""
        return self.names.fresh(f"{self.site}/{stem}")

    @property
    def usual_dtype(self) -> ir.DataType | None:
        """The element type of a result for which none is given."""
        return None

    def domain(self, op: str) -> str:  # noqa: ARG002 - of other writers
        """Return the domain of an operator that is written."""
        return ""

    def metadata(self, stem: str, position: GridPlace) -> dict[str, str]:  # noqa: ARG002 - of other writers
        """Return the metadata of a node."""
        return {}

    def _value(self, name: str, dims: Dims, dtype: ir.DataType | None) -> ir.Value:
        if dims not in self._shapes:
            self._shapes[dims] = ir.Shape(dims, frozen=True)
        return ir.Value(name=name, shape=self._shapes[dims], type=None if dtype is None else ir.TensorType(dtype))

    def _add(
        self,
        op: str,
        inputs: Sequence[ir.Value | None],
        attributes: Iterable[ir.Attr],
        outputs: Sequence[ir.Value],
        name: str,
        part: tuple[str, GridPlace],
    ) -> None:
        notes = {**self.metadata(*part), **module_note(self.path, name)}
        node = ir.Node(self.domain(op), op, inputs, attributes, outputs=outputs, name=name, metadata_props=notes)
        self.nodes.append(node)
