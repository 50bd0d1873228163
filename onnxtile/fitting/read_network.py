"""Reads a model as a network of kernels."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from math import prod

import onnx_ir as ir

from onnxtile.fitting.network import FitKernel, FitTensor, Network
from onnxtile.kernels.aliases import LayoutFacts, joins_quantised, overwritable
from onnxtile.model.constants import Constants
from onnxtile.model.graph_writer import Names
from onnxtile.model.node_kinds import RandomNodes, converts, dequantises, is_quantised, quantises
from onnxtile.model.topology import dependencies, has_body, node_id
from onnxtile.operators.families.movement import slice_ranges
from onnxtile.operators.node_view import NodeView, NotApplicable
from onnxtile.operators.reads import AxisLink, AxisLinks
from onnxtile.operators.table import MATRIX_PRODUCTS, Folding, axis_links, folding_of, sharing_of, slides, work_of
from onnxtile.shapes.resolve import Shapes, tensor_bytes
from onnxtile.system.dataclass import dataclass

# Quantised islands as single kernels: what is between their nodes is never stored.


def runs_as_one(nodes: Sequence[ir.Node], inside: Collection[ir.Value]) -> list[list[ir.Node]]:
    """Return the nodes that run as one kernel each, in the order of the last node of each: those linked by values `inside` of islands.

    Nodes of an island stay apart where another node reads what it stores before its last node.
    """
    places = {node: position for position, node in enumerate(nodes)}
    groups = {node: [node] for node in nodes}
    for node in nodes:
        for value in node.inputs:
            maker = None if value is None or value not in inside else value.producer()
            if maker in groups and groups[maker] is not groups[node]:
                joined = groups[maker] + groups[node]
                groups.update(dict.fromkeys(joined, joined))
    runs: list[list[ir.Node]] = []
    for group in {id(group): group for group in groups.values()}.values():
        group.sort(key=places.__getitem__)
        runs += [group] if _is_one(group, places, inside) else [[node] for node in group]
    return sorted(runs, key=lambda run: places[run[-1]])


def _is_one(group: Sequence[ir.Node], places: Mapping[ir.Node, int], inside: Collection[ir.Value]) -> bool:
    """Return whether all that reads what a group stores comes after the group."""
    members, last = set(group), places[group[-1]]
    stored = (value for node in group for value in node.outputs if value not in inside)
    readers = (use.node for value in stored for use in value.uses() if use.node not in members)
    return all(places.get(reader, -1) > last for reader in readers)


def as_one(
    parts: Sequence[FitKernel], tensors: Sequence[FitTensor], over: Collection[int] = (), *, is_join: bool = False
) -> FitKernel:
    """Return the kernel that runs the nodes of `parts`.

    Its result may be written over operands of `over`, and is these one after the other where it `is_join`.
    """
    reads, links = _reads(parts, tensors)
    order = _joined(parts, reads) if is_join else None
    if order is not None:
        links = None if links is None else tuple(links[reads.index(tensor)] for tensor in order)
        reads = order
    named = next((part for part in parts if part.source.node is not None and not converts(part.source.node)), parts[-1])
    unalike = "" if links is not None else "its nodes read rows in ways that are not those of one kernel"
    return replace(
        named,
        reads=tuple(reads),
        makes=tuple(tensor for part in parts for tensor in part.makes if not tensors[tensor].is_inside),
        links=links,
        macs=sum(part.macs for part in parts),
        overwrites=frozenset(position for position, tensor in enumerate(reads) if tensor in over and order is None),
        is_view=False,
        is_join=order is not None,
        is_split=False,
        reason=next((part.reason for part in parts if part.reason), unalike),
        is_random=any(part.is_random for part in parts),
        parts=tuple(parts),
    )


def _reads(parts: Sequence[FitKernel], tensors: Sequence[FitTensor]) -> tuple[list[int], AxisLinks | None]:
    """Return the operands of an island, with the link of each to the rows of the results; None where rows are not those of one kernel."""
    results = {tensor for part in parts for tensor in part.makes}
    reads = list(dict.fromkeys(tensor for part in parts for tensor in part.reads if tensor not in results))
    needs: dict[int, AxisLink | None] = {
        tensor: AxisLink(tensors[tensor].axis or 0) for tensor in results if not tensors[tensor].is_inside
    }
    for part in reversed(parts):
        asked = {needs[tensor] for tensor in part.makes if tensor in needs}
        if part.links is None or len(asked) != 1:
            return reads, None
        need = asked.pop()
        for tensor, link in zip(part.reads, part.links, strict=True):
            is_cut = need is not None and link is not None and link.axis == tensors[tensor].axis
            through = _through(need, link) if is_cut and need is not None and link is not None else None
            if (is_cut and through is None) or needs.setdefault(tensor, through) != through:
                return reads, None
    return reads, tuple(needs[tensor] for tensor in reads)


def _through(need: AxisLink, link: AxisLink) -> AxisLink | None:
    """Return the link of an operand of a node whose result has the link `need`; None where both have windows."""
    if need == AxisLink(need.axis):
        return link
    return replace(need, axis=link.axis) if link == AxisLink(link.axis) else None


def _joined(parts: Sequence[FitKernel], reads: Collection[int]) -> list[int] | None:
    """Return the operands of an island in the order in which it joins them; None where one is not joined, or more than once."""
    given = {part.makes[0]: part.reads[0] for part in parts if len(part.reads) == 1}
    join = next((part for part in parts if len(part.reads) > 1), parts[-1])
    order = [given.get(tensor, tensor) for tensor in join.reads]
    return order if len(order) == len(reads) and set(order) == set(reads) else None


# Quantised models: tensors inside of islands, which run as one kernel, take no bytes and are never handed over.


def separate(model: ir.Model, shapes: Shapes | None = None) -> None:
    """Give each reader of a DequantizeLinear node a copy of its own (in place), as an island has; results carry `shapes` where known."""
    names, constants = Names(model), Constants(model)
    for node in list(model.graph):
        if not dequantises(node) or node.outputs[0] in constants or node.outputs[0].is_graph_output():
            continue
        for use in list(node.outputs[0].uses())[1:]:
            if use.node.graph is not model.graph:
                continue
            result = node.outputs[0]
            sizes = None if shapes is None else shapes.sizes(result)
            shape = result.shape if sizes is None else ir.Shape(sizes)
            dtype = None if shapes is None else shapes.dtype(result)
            kind = result.type if dtype is None else ir.TensorType(dtype)
            value = ir.Value(name=names.fresh(f"{result.name}/copy"), shape=shape, type=kind)
            copy = ir.Node(
                node.domain,
                node.op_type,
                list(node.inputs),
                list(node.attributes.values()),
                outputs=[value],
                name=names.fresh(f"{node.name}/copy"),
            )
            model.graph.insert_after(node, [copy])
            use.node.replace_input_with(use.idx, value)


@dataclass(frozen=True)
class IslandTensors:
    """The values `inside` of quantised islands, and what their results share bytes with.

    `overwritten` has, for each result of an island, the stored operands that it may be written over, or that it joins without a
    computation. `joined` has the Concat of each result that is such a join.
    """

    inside: frozenset[ir.Value] = frozenset()
    overwritten: Mapping[ir.Value, frozenset[ir.Value]] = field(default_factory=dict)
    joined: Mapping[ir.Value, ir.Node] = field(default_factory=dict)


def island_tensors(model: ir.Model, constants: Constants) -> IslandTensors:
    """Return the values that are made and read inside of one quantised island, and those that its results are written over."""
    if not is_quantised(model):
        return IslandTensors()
    from onnxtile.fusion.islands import island_region, islands, overwritten  # a model of floats needs neither
    from onnxtile.fusion.pattern import select

    rule = next((pattern.island for pattern in select(["quantised"]) if pattern.island is not None), None)
    if rule is None:
        return IslandTensors()
    stored_values: set[ir.Value] = set()
    over: dict[ir.Value, frozenset[ir.Value]] = {}
    joined: dict[ir.Value, ir.Node] = {}
    for island in islands(model, model.graph, rule, constants):
        members = set(island.nodes)
        results = (value for node in island.nodes for value in node.outputs if value not in constants)
        hidden = {value for value in results if value.uses() and all(use.node in members for use in value.uses())}
        # Sums of a tensor that is stored are stored, too: they are added up part by part.
        stored_values.update(value for value in hidden if not _sums_stored(value.producer(), hidden))
        part = island_region(island)
        if len(part.outputs) == 1:
            join = next((node for node in island.operators if island.is_view and node.op_type == "Concat"), None)
            places = range(len(part.inputs)) if island.is_view else overwritten(island, part, rule)
            stored = (part.inputs[position] for position in places)
            over[part.outputs[0]] = frozenset(value for value in stored if value not in constants)
            joined.update({} if join is None else {part.outputs[0]: join})
    inside = frozenset(value for value in stored_values if not value.is_graph_output())
    return IslandTensors(inside, over, joined)


def _sums_stored(node: ir.Node | None, inside: Collection[ir.Value]) -> bool:
    """Return whether a node reduces a tensor that is not `inside` of its island."""
    return node is not None and folding_of(node) is not None and node.inputs[0] not in inside


_STANDARD = {"", "ai.onnx"}


@dataclass(frozen=True)
class KernelSource:
    """The node that a kernel runs, for the writer.

    `places` has the place of each operand in `reads` (None for one that only a body reads). `links` are those of all operands, constants
    included. `slices` has the axis, start and stop of constants of which the kernel reads a part, by their
    places; operands in `left_out` are not given. Without a `node` the kernel adds its operands, or joins them along `join_axis`.
    """

    node: ir.Node | None
    places: tuple[int | None, ...]
    links: AxisLinks | None
    slices: Mapping[int, tuple[int, int, int]] = field(default_factory=dict)
    left_out: frozenset[int] = frozenset()
    join_axis: int | None = None
    windows: tuple[AxisLink, ...] = ()
    """The windows along each axis after the channels, of an operator that has some."""


_EXTREMES = frozenset({"Max", "Min"})
"""The operators that put parts together with the same result in any order."""


@dataclass(frozen=True)
class FoldedRows:
    """How a result is reduced from `rows` rows of its operands: the operator that puts parts together, and the links of the operands."""

    join: str
    rows: int
    links: AxisLinks


class _NetworkReader:
    def __init__(
        self, model: ir.Model, shapes: Shapes, constants: Constants, of_islands: IslandTensors, exact: bool, io: str
    ) -> None:
        self.of_islands, self.exact, self.io = of_islands, exact, io
        self.model, self.shapes, self.constants = model, shapes, constants
        self.facts = LayoutFacts(model, shapes, constants)
        self.opset = model.graph.opset_imports.get("", model.graph.opset_imports.get("ai.onnx", 1))
        self.random = RandomNodes(model, constants)
        self.nodes = [n for n in model.graph if not all(v in constants for v in n.outputs if v.name)]
        self.runs = runs_as_one(self.nodes, of_islands.inside)
        results = (value for run in self.runs if len(run) > 1 for node in run for value in node.outputs)
        self.inside = of_islands.inside.intersection(results)
        self._apart = {*self.inside, *self.facts.streams}
        """The values whose parts have bytes of their own: those inside of islands, and inputs that come row by row."""
        self.numbers: dict[ir.Value, int] = {}
        outputs = set(model.graph.outputs)
        self.values = [v for v in self._values() if v not in constants or v in outputs]
        for value in self.values:
            self.numbers.setdefault(value, len(self.numbers))
        self._linked: dict[tuple[ir.Node, int], AxisLinks | None] = {}
        """The links of each node along each axis: a node with many operands is asked for each of them."""
        self.axes = self._axes()
        self.folded = dict(self._folded())

    def _values(self) -> Iterable[ir.Value]:
        yield from self.model.graph.inputs
        for node in self.nodes:
            yield from (value for value in node.outputs if value.name)

    def reads(self, node: ir.Node) -> list[tuple[int | None, ir.Value]]:
        """Return the operands of `node` that are made at run time, each with its place; None for one that only its body reads."""
        operands: list[tuple[int | None, ir.Value]] = [
            (position, value)
            for position, value in enumerate(node.inputs)
            if value is not None and value in self.numbers
        ]
        values = {value for _, value in operands}
        operands += [(None, v) for v in dict.fromkeys(dependencies(node)) if v in self.numbers and v not in values]
        return operands

    def _axes(self) -> dict[ir.Value, int | None]:
        """Return the axis of rows of each value: one that windows slide along, else the last but one, unless the first reader moves it."""
        axes: dict[ir.Value, int | None] = {}
        slid: set[ir.Value] = set()
        for value in self.values:
            axes[value] = self._default(value, axes, slid)
        settled: set[ir.Value] = set()
        for node in reversed(self.nodes):
            result = node.outputs[0]
            links = None if result not in axes or has_body(node) else self._links(node, axes[result])
            for position, value in self.reads(node) if links is not None else ():
                link = None if position is None or links is None else links[position]
                if value in settled or link is None or (value in slid and self._adds_up(node, position, axes[value])):
                    continue
                if self._moves(value, link.axis, slid):
                    axes[value] = link.axis
                    settled.add(value)
        # Of a tensor without elements there is no strip.
        return {value: None if 0 in (self.shapes.sizes(value) or ()) else axis for value, axis in axes.items()}

    def _moves(self, value: ir.Value, axis: int, slid: Collection[ir.Value]) -> bool:
        """Return whether a reader of rows along an axis says which rows a value has: those of maps lie along rows or columns."""
        return value not in slid or (axis > 1 and (self.shapes.sizes(value) or ())[axis] > 1)

    def _adds_up(self, node: ir.Node, position: int | None, axis: int | None) -> bool:
        """Return whether a node adds up the rows of its operand along an axis. It does so part by part, so they stay as they are."""
        folding = folding_of(node)
        if folding is None or position is None or axis is None:
            return False
        try:
            folding.reads(NodeView(node, self.shapes, self.constants, self.opset), position, axis)
        except NotApplicable:
            return False
        return True

    def _default(self, value: ir.Value, known: Mapping[ir.Value, int | None], slid: set[ir.Value]) -> int | None:
        """Return the axis that comes from rows of an operand, given those of values before; else the last but one.

        A value after windows is noted in `slid`. Its rows come from those of an operand of this kind, if there is one. The first rows lie
        along the longest axis that windows slide along.
        """
        rank, node = len(self.shapes.sizes(value) or ()), value.producer()
        operands = [] if node is None or has_body(node) else self.reads(node)
        for position, operand in sorted(operands, key=lambda read: read[1] not in slid):
            axis = known[operand]
            if node is None or position is None or axis is None or (slides(node) and operand not in slid):
                continue
            rows = self._axis_from(node, position, axis, rank)
            if rows is not None:
                slid.update([value] if operand in slid else [])
                return rows
        if node is not None and slides(node) and rank > 2:
            slid.add(value)
            return self._longest(value)
        return rank - 2 if rank > 1 else None

    def _longest(self, value: ir.Value) -> int:
        """Return the longest axis after the channels; of equals, the last but one."""
        sizes = self.shapes.sizes(value) or ()
        return max(range(2, len(sizes)), key=lambda axis: (sizes[axis], axis == len(sizes) - 2))

    def _axis_from(self, node: ir.Node, position: int, operand_axis: int, rank: int) -> int | None:
        """Return the axis of a node's result that comes from the axis `operand_axis` of one operand."""
        for axis in sorted(range(rank), key=lambda axis: axis != operand_axis):
            links = self._links(node, axis)
            link = None if links is None else links[position]
            if link is not None and link.axis == operand_axis:
                return axis
        # A join or a split of rows keeps their axis.
        return operand_axis if sharing_of(node) in {"cut", "join"} and operand_axis < rank else None

    def _folded(self) -> Iterator[tuple[ir.Value, FoldedRows]]:
        """Yield the results that are reduced from rows of their operands, part by part."""
        for node in self.nodes:
            folding, result = folding_of(node), node.outputs[0]
            if folding is None or len(node.outputs) > 1 or result in self.inside or not self._may_fold(folding, result):
                continue
            links = next((links for links in self._folds(node, folding) if links is not None), None)
            if links is not None:
                rows = next(
                    self._rows(value)
                    for position, value in self.reads(node)
                    if position is not None and links[position]
                )
                yield result, FoldedRows(folding.join, rows, links)

    def _may_fold(self, folding: Folding, result: ir.Value) -> bool:
        """Return whether parts may be put together in any order: sums and products of floats not where each bit counts."""
        dtype = self.shapes.dtype(result)
        return folding.join in _EXTREMES or not self.exact or (dtype is not None and not dtype.is_floating_point())

    def _folds(self, node: ir.Node, folding: Folding) -> Iterator[AxisLinks | None]:
        """Yield the links of the operands of a node along the rows of each of its operands; None where these are not reduced."""
        view, read = NodeView(node, self.shapes, self.constants, self.opset), self.reads(node)
        for position, value in read:
            axis = self.axes[value]
            if position is None or axis is None or self._rows(value) < 2:
                continue
            try:
                links = folding.reads(view, position, axis)
            except NotApplicable:
                continue
            linked = ((links[other], operand) for other, operand in read if other is not None)
            yield links if all(link is None or link.axis == self.axes[operand] for link, operand in linked) else None

    def _rows(self, value: ir.Value) -> int:
        axis, sizes = self.axes[value], self.shapes.sizes(value)
        return 1 if axis is None or not sizes else sizes[axis]

    def _links(self, node: ir.Node, axis: int | None) -> AxisLinks | None:
        if axis is None or node.op_identifier() in self.model.functions:
            return None
        key = node, axis
        if key not in self._linked:
            try:
                self._linked[key] = axis_links(NodeView(node, self.shapes, self.constants, self.opset), axis)
            except NotApplicable:
                self._linked[key] = None
        return self._linked[key]

    def network(self) -> Network:
        outputs = set(self.model.graph.outputs)
        tensors = [self._activation(value, value in outputs) for value in self.numbers]
        return Network(tensors, [self._run(run, tensors) for run in self.runs])

    def _run(self, nodes: Sequence[ir.Node], tensors: Sequence[FitTensor]) -> FitKernel:
        """Return the kernel that several nodes run as, or a single one."""
        parts, result = [self._kernel(node) for node in nodes], nodes[-1].outputs[0]
        over = self._overwritten_by_island(result)
        if len(parts) == 1:
            more = {position for position, tensor in enumerate(parts[0].reads) if tensor in over}
            return replace(parts[0], overwrites=parts[0].overwrites | more) if more else parts[0]
        joined = self.of_islands.joined.get(result)
        return as_one(parts, tensors, over, is_join=joined is not None and self._is_contiguous(joined))

    def _activation(self, value: ir.Value, is_output: bool) -> FitTensor:
        dims, dtype = self.shapes.sizes(value) or (), self.shapes.dtype(value)
        size = tensor_bytes(value, self.shapes) or 0
        elements = prod(dims)
        item = size // elements if elements and dtype is not None else 0
        is_input = value.producer() is None
        is_streamed = value in self.facts.streams
        is_outside = is_streamed or self.io != "inside" if is_input else is_output and self.io == "outside"
        is_inside, folded = value in self.inside, self.folded.get(value)
        return FitTensor(
            value.name or "",
            dims,
            0 if is_inside else item,
            self.axes[value] if folded is None else None,
            is_outside,
            is_output,
            is_inside,
            is_input and not is_outside,
            is_input and any(quantises(use.node) for use in value.uses()),
            dtype,
            *((0, "") if folded is None else (folded.rows, folded.join)),
            is_streamed,
        )

    def _kernel(self, node: ir.Node) -> FitKernel:
        read = self.reads(node)
        results = [value for value in node.outputs if value.name]
        links = self._cut(node)
        chosen = None if links is None else tuple(None if position is None else links[position] for position, _ in read)
        standard = node.domain in _STANDARD
        allowed = overwritable(node, self.facts) if results[0] is node.outputs[0] else ()
        overwrites = {
            number
            for number, (position, value) in enumerate(read)
            if position in allowed and self._is_alike_in_bytes(value, results[0])
        }
        same = read and tensor_bytes(read[0][1], self.shapes) == tensor_bytes(results[0], self.shapes)
        is_view = standard and sharing_of(node) == "view" and bool(same) and read[0][0] == 0
        is_view = is_view and node not in self.random
        is_view = is_view and self.shapes.dtype(read[0][1]) == self.shapes.dtype(results[0])
        return FitKernel(
            node_id(node),
            tuple(self.numbers[value] for _, value in read),
            tuple(self.numbers[value] for value in results),
            chosen,
            self._macs(node),
            frozenset(overwrites),
            is_view,
            self._is_join(node) and self._is_contiguous(node),
            standard and sharing_of(node) == "cut" and read[0][1] not in self._apart and self._is_part(node),
            KernelSource(node, tuple(position for position, _ in read), links, windows=self._windows(node)),
            "" if links is not None else self._reason(node),
            node in self.random,
        )

    def _cut(self, node: ir.Node) -> AxisLinks | None:
        """Return the links of a node whose results all have one axis of rows, or are reduced from rows; None where it is not cut."""
        if node.outputs[0] in self.folded:
            return self.folded[node.outputs[0]].links
        # The first result may be one that nothing reads, which has no name.
        if node.outputs[0] not in self.axes or has_body(node) or self._may_round(node) or not self._is_alike(node):
            return None
        links = self._links(node, self.axes[node.outputs[0]])
        if links is None or self._is_summed(links):
            return None
        # Rows of the result that come from another axis of an operand would have to be cut as that one.
        given = ((links[position], value) for position, value in self.reads(node) if position is not None)
        is_turned = any(link is not None and link.axis != self.axes[value] for link, value in given)
        return None if is_turned else links

    def _is_summed(self, links: AxisLinks) -> bool:
        """Return whether rows of the result are sums that a matrix product of fewer rows may round differently."""
        return self.exact and any(link is not None and link.sums for link in links)

    def _is_alike(self, node: ir.Node) -> bool:
        """Return whether all results of a node have the same axis of rows."""
        return len({self.axes[value] for value in node.outputs if value in self.axes}) < 2

    def _may_round(self, node: ir.Node) -> bool:
        """Return whether fewer rows may change the last bits: onnxruntime multiplies a row alone by another kernel."""
        return self.exact and node.op_type in {*MATRIX_PRODUCTS, "Einsum"} and self.inside.isdisjoint(node.inputs)

    def _reason(self, node: ir.Node) -> str:
        """Return the reason why a node is not cut into rows."""
        axis = self.axes.get(node.outputs[0])
        if has_body(node):
            return "it has a body"
        if axis is None:
            return "its result has no rows"
        if not self._is_alike(node):
            return "its results have rows along different axes"
        if self._may_round(node):
            return "a matrix product of fewer rows may round differently, which --tolerance exact does not allow"
        if node.op_identifier() in self.model.functions:
            return f"{node.domain}.{node.op_type} has no rule for cutting"
        try:
            links = axis_links(NodeView(node, self.shapes, self.constants, self.opset), axis)
        except NotApplicable as error:
            return str(error)
        if self._is_summed(links):
            return "sums of fewer rows may round differently, which --tolerance exact does not allow"
        return "it reads another axis of an operand than the one that is cut"

    def _windows(self, node: ir.Node) -> tuple[AxisLink, ...]:
        if not slides(node):
            return ()
        rank = len(self.shapes.sizes(node.outputs[0]) or ())
        links = (self._links(node, axis) for axis in range(2, rank))
        return tuple(link[0] for link in links if link is not None and link[0] is not None)

    def _overwritten_by_island(self, result: ir.Value) -> frozenset[int]:
        """Return the operands of the island of a value whose bytes the value may take, or joins."""
        islands = self.of_islands
        stored = (value for value in islands.overwritten.get(result, ()) if value in self.numbers)
        return frozenset(
            self.numbers[value]
            for value in stored
            if result in islands.joined or self._is_alike_in_bytes(value, result)
        )

    def _is_alike_in_bytes(self, value: ir.Value, result: ir.Value) -> bool:
        """Return whether two values have as many elements and bytes: floats are not written over the integers that they are made of."""
        sizes, made = self.shapes.sizes(value), self.shapes.sizes(result)
        is_alike = sizes is not None and made is not None and prod(sizes) == prod(made)
        return is_alike and tensor_bytes(value, self.shapes) == tensor_bytes(result, self.shapes)

    def _is_join(self, node: ir.Node) -> bool:
        """Return whether a node joins its operands without a computation."""
        if node.op_type == "Concat":
            return node.domain in _STANDARD
        return joins_quantised(node, self.model, self.constants) is not None

    def _is_contiguous(self, node: ir.Node) -> bool:
        sizes = self.shapes.sizes(node.outputs[0]) or ()
        axis = node.attributes.get_int("axis", 1)
        return all(size == 1 for size in sizes[: axis % max(len(sizes), 1)])

    def _is_part(self, node: ir.Node) -> bool:
        """Return whether the results of a Split or Slice are consecutive bytes of its operand."""
        before = (self.shapes.sizes(node.inputs[0]) if node.inputs[0] is not None else None) or ()
        for value in node.outputs:
            after = self.shapes.sizes(value) or ()
            cut = [axis for axis, pair in enumerate(zip(before, after, strict=True)) if pair[0] != pair[1]]
            if len(cut) > 1 or any(size != 1 for size in before[: cut[0] if cut else 0]):
                return False
        return node.op_type == "Split" or self._is_forward(node)

    def _is_forward(self, node: ir.Node) -> bool:
        """Return whether a Slice takes each element of a range."""
        try:
            ranges = slice_ranges(NodeView(node, self.shapes, self.constants, self.opset))
        except NotApplicable:
            return False
        return all(range_.step == 1 for range_ in ranges.values())

    def _macs(self, node: ir.Node) -> int:
        try:
            return work_of(node, self.shapes).macs
        except NotApplicable:
            return 0


def read_network(
    model: ir.Model,
    shapes: Shapes,
    constants: Constants,
    of_islands: IslandTensors | None = None,
    *,
    exact: bool = False,
    io: str = "outputs",
) -> Network:
    """Return the kernels of the main graph of `model` and the tensors between them; values inside of islands take no bytes.

    `io` says which inputs and outputs are in the arena, as in a plan; inputs that are may be written over. With `exact`, only kernels are
    cut whose pieces are equal to the whole in the last bit.
    """
    return _NetworkReader(model, shapes, constants, of_islands or IslandTensors(), exact, io).network()
