"""Makes the nodes and constants of one site, each with its name, its type and its mark."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import onnx_ir as ir

from onnxtile import keys
from onnxtile.tiling.constant_reader import ConstantReader
from onnxtile.tiling.contraction import Contraction
from onnxtile.tiling.copies import keeps_copies
from onnxtile.tiling.grid import TileGrid
from onnxtile.tiling.names import Names
from onnxtile.tiling.tensors import TensorDims

SplitPart = tuple[str, TensorDims]
"""The stem of an output's name, and its dimensions."""
GridPlace = dict[str, int]
"""The place of a node in the grid: the number of the stretch along "m", "k" and "n", as far as the node has one."""


def label(stem: str, place: GridPlace) -> str:
    """Return a readable name for something at `place`: tile_m0_k1_n2."""
    return "_".join((stem, *(f"{axis}{index}" for axis, index in place.items())))


@dataclass
class Writer:
    """Collects the nodes and constants that replace one site, in the order in which they are made; the graph is not changed."""

    site: str
    op: str
    contraction: Contraction
    grid: TileGrid
    opset: int
    names: Names = field(repr=False)
    reader: ConstantReader = field(default_factory=ConstantReader, repr=False)
    nodes: list[ir.Node] = field(default_factory=list)
    constants: list[ir.Value] = field(default_factory=list)
    sizes: list[ir.Value] = field(default_factory=list)
    """Those of the constants that are sizes, which Split, Pad and Slice take."""

    def __post_init__(self) -> None:
        sizes = {"m": self.contraction.m, "k": self.contraction.k, "n": self.contraction.n}
        self._mark = json.dumps({"node": self.site, "op": self.op, **sizes, "grid": list(self.grid.shape)})
        self._shapes: dict[TensorDims, ir.Shape] = {}
        self._known: dict[tuple[int, ...], ir.Value] = {}

    def node(
        self,
        op: str,
        inputs: Sequence[ir.Value | None],
        stem: str,
        place: GridPlace,
        dims: TensorDims,
        attributes: Iterable[ir.Attr] = (),
        dtype: ir.DataType | None = None,
    ) -> ir.Value:
        """Write a node with one output of size `dims`, of the product's type by default; return the output, which is called as the node."""
        name = self.fresh(label(stem, place))
        output = self._value(name, dims, dtype or self.contraction.dtype)
        self._add(op, inputs, attributes, [output], name, (stem, place))
        return output

    def concat(self, blocks: Sequence[ir.Value], axis: int | None, place: GridPlace, dims: TensorDims) -> ir.Value:
        """Write a Concat of `blocks`; a single block is returned as it is."""
        if axis is None or len(blocks) == 1:
            return blocks[0]
        axis_of = [ir.AttrInt64("axis", axis)]
        return self.node("Concat", blocks, "concat", place, dims, axis_of, self.contraction.result_dtype)

    def split(
        self,
        operand: tuple[ir.Value, ir.DataType],
        axis: int,
        sizes: ir.Value | list[int],
        stem: str,
        place: GridPlace,
        parts: Sequence[SplitPart],
    ) -> list[ir.Value]:
        """Write a Split of a value of some type along `axis` into `parts`; `sizes` as `split_sizes` made them."""
        value, dtype = operand
        outputs = [self._value(self.fresh(name), dims, dtype) for name, dims in parts]
        attributes = [ir.AttrInt64("axis", axis)]
        inputs: list[ir.Value | None] = [value]
        if isinstance(sizes, ir.Value):
            inputs.append(sizes)
        else:
            attributes.append(ir.AttrInt64s("split", sizes))
        self._add("Split", inputs, attributes, outputs, self.fresh(label(stem, place)), (stem, place))
        return outputs

    def pad(
        self,
        operand: tuple[ir.Value, ir.DataType],
        after: list[int],
        stem: str,
        place: GridPlace,
        dims: TensorDims,
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
            return self.node("Pad", [value], stem, place, dims, [ir.AttrInt64s("pads", pads)], dtype)
        sizes = self.int64s(pads, f"{label(stem, place)}_sizes")
        return self.node("Pad", [value, sizes, *([] if fill is None else [fill])], stem, place, dims, (), dtype)

    def cut_off(self, value: ir.Value, place: GridPlace, dims: TensorDims, wanted: TensorDims) -> ir.Value:
        """Write a Slice that leaves the first elements along each axis of a block of `dims`, as many as `wanted` has there."""
        axes = [axis for axis, (have, want) in enumerate(zip(dims, wanted, strict=True)) if have != want]
        ends = [size for size in (wanted[axis] for axis in axes) if isinstance(size, int)]
        if not axes:
            return value
        index = {axis: slice(0, end) for axis, end in zip(axes, ends, strict=True)}
        return self.slice((value, self.contraction.result_dtype), index, "cut_off", place, wanted)

    def slice(
        self,
        operand: tuple[ir.Value, ir.DataType],
        index: Mapping[int, slice],
        stem: str,
        place: GridPlace,
        dims: TensorDims,
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
            return self.node("Slice", [value], stem, place, dims, attributes, dtype)
        name = label(stem, place)
        made = [self.int64s(numbers, f"{name}_{part}") for part, numbers in content.items()]
        return self.node("Slice", [value, *made], stem, place, dims, (), dtype)

    def split_sizes(self, sizes: list[int], stem: str) -> ir.Value | list[int]:
        """Return the sizes in the form that Split takes in this opset: an input since 13, an attribute before.

        One constant serves every Split of the same sizes.
        """
        if self.opset < 13:
            return sizes
        return self.int64s(sizes, stem)

    def constant(self, tensor: ir.TensorProtocol, stem: str) -> ir.Value:
        """Write an initializer that holds `tensor`."""
        tensor.name = name = self.fresh(stem)
        shape = ir.Shape(tensor.shape.numpy())
        value = ir.Value(name=name, shape=shape, type=ir.TensorType(tensor.dtype), const_value=tensor)
        self.constants.append(value)
        return value

    def int64s(self, sizes: list[int], stem: str) -> ir.Value:
        """Return an initializer of these sizes, which stay inline when weights are external; equal sizes share one."""
        key = tuple(sizes)
        if key not in self._known:
            self._known[key] = self.constant(ir.tensor(sizes, dtype=ir.DataType.INT64), stem)
            self.sizes.append(self._known[key])
        return self._known[key]

    @cached_property
    def keeps_copies(self) -> bool:
        """Whether the arena has room for the copies of all blocks of the operands."""
        return keeps_copies(self.contraction, self.grid, self.opset)

    def fresh(self, stem: str) -> str:
        """Return a name for something of this site that the model does not use yet."""
        return self.names.fresh(f"{self.site}/{stem}")

    def mark(self, part: str, place: GridPlace) -> str:
        """Return the mark of a node: the original node, and the part of it that the new node computes (JSON)."""
        at = ", ".join(f'"{axis}": {index}' for axis, index in place.items())
        return f'{self._mark[:-1]}, "part": "{part}", "at": {{{at}}}}}'

    def _value(self, name: str, dims: TensorDims, dtype: ir.DataType) -> ir.Value:
        if dims not in self._shapes:
            self._shapes[dims] = ir.Shape(dims, frozen=True)
        return ir.Value(name=name, shape=self._shapes[dims], type=ir.TensorType(dtype))

    def _add(
        self,
        op: str,
        inputs: Sequence[ir.Value | None],
        attributes: Iterable[ir.Attr],
        outputs: Sequence[ir.Value],
        name: str,
        part: tuple[str, GridPlace],
    ) -> None:
        stem, place = part
        mark = self.mark(stem, place)
        domain = self.contraction.tile_domain if op == self.contraction.tile else ""
        node = ir.Node(domain, op, inputs, attributes, outputs=outputs, name=name, metadata_props={keys.TILE: mark})
        self.nodes.append(node)
