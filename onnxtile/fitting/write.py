"""Writes a schedule into a model: each operation of a region becomes a node. The arena is known before a node is made."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from functools import cached_property
from itertools import accumulate, count

import numpy as np
import onnx_ir as ir
from onnx_ir import convenience

from onnxtile.fitting.editing import ModelEdit
from onnxtile.fitting.live_bytes import ALIGNMENT, LiveCount, Patch, PieceOp, RegionTrace
from onnxtile.fitting.network import FitKernel, FitTensor
from onnxtile.fitting.read_network import KernelSource
from onnxtile.fitting.regions import Regions
from onnxtile.fitting.strips import FitSchedule, PatchRange
from onnxtile.kernels.kernel_graph import LivePart, union
from onnxtile.model import keys
from onnxtile.model.constants import Constants, prune
from onnxtile.model.functions import add_function, free_function, inline_calls, read_from_outside
from onnxtile.model.modules import ModulePath, module_note, module_path
from onnxtile.model.topology import all_values, dependencies, is_read_outside, nodes_inside
from onnxtile.operators.families.movement import pad_sizes, resize_scales, slice_ranges
from onnxtile.operators.reads import InputWindow, SourceRows
from onnxtile.operators.table import factors_of, operator_of, slides
from onnxtile.planning.offsets.problem import Buffer, Problem
from onnxtile.shapes.opened_calls import is_kernel
from onnxtile.shapes.resolve import Shapes
from onnxtile.system.dataclass import dataclass

_OPEN = {"auto_pad", "pads", "output_padding", "output_shape", "ceil_mode"}


def write(
    model: ir.Model, schedule: FitSchedule, regions: Regions, shapes: Shapes, constants: Constants
) -> list[list[ir.Node]]:
    """Replace each region of `schedule` that is cut by the nodes of its pieces (in `model`, of which `regions` were read).

    Returns the nodes of each of these regions.
    """
    written: list[list[ir.Node]] = []
    graph, edit = model.graph, ModelEdit(model, shapes, constants)
    values = {value.name: value for value in (*graph.inputs, *(v for node in graph for v in node.outputs))}
    handed: dict[int, list[ir.Value]] = {}
    for number, region in enumerate(cut_region for cut_region in schedule.regions if not cut_region.is_whole):
        (kernels, trace), tensors = regions.traced_nodes(region), regions.all_tensors
        used = {tensor for kernel in kernels for tensor in (*kernel.reads, *kernel.makes)}
        whole = {tensor: values.get(tensors[tensor].name) for tensor in used if tensor < len(regions.network.tensors)}
        writer = _RegionWriter(f"region{number}", tensors, kernels, whole, handed, edit)
        _replace(graph, kernels, writer.write(trace), writer, values)
        written.append(writer.nodes)
    prune({value for value in all_values(model)}, constants)
    return written


def _replace(
    graph: ir.Graph,
    kernels: Sequence[FitKernel],
    results: Mapping[ir.Value, ir.Value],
    writer: _RegionWriter,
    values: dict[str | None, ir.Value],
) -> None:
    old = dict.fromkeys(kernel.source.node for kernel in kernels if kernel.source.node is not None)
    last = max(old, key=lambda node: writer.position(graph, node))
    graph.insert_before(last, [*writer.dequantised, *writer.nodes])
    for before, after in results.items():
        name = before.name
        before.name = None
        after.name = name
        after.metadata_props.update(before.metadata_props)
        convenience.replace_all_uses_with(before, after, replace_graph_outputs=True)
        values[name] = after
    graph.remove(old, safe=False)
    for node in old:
        # Constants of which only parts are read now are removed, since nothing uses them.
        for index in range(len(node.inputs)):
            node.replace_input_with(index, None)


def _path_of(node: ir.Node | None) -> ModulePath:
    return () if node is None else module_path(node.name, node.metadata_props)


@dataclass
class _RegionWriter:
    """Makes the constants of one region, and its nodes in the order in which they run, which are not put into the graph.

    `handed` has the pieces of tensors that regions hand over in pieces; those of this region are added.
    """

    name: str
    tensors: Sequence[FitTensor]
    kernels: Sequence[FitKernel]
    whole: Mapping[int, ir.Value | None]
    handed: dict[int, list[ir.Value]]
    edit: ModelEdit
    nodes: list[ir.Node] = field(default_factory=list)
    dequantised: list[ir.Node] = field(default_factory=list)
    """The nodes that give back floats of parts of integers, which come first."""
    _parts: dict[tuple[object, ...], ir.Value] = field(default_factory=dict)
    _positions: dict[ir.Node, int] = field(default_factory=dict)
    _counts: Counter[str] = field(default_factory=Counter)
    _paths: dict[str, ModulePath] = field(default_factory=dict)
    """The modules around kernels, and around those that make tensors, by the names of both."""

    def position(self, graph: ir.Graph, node: ir.Node) -> int:
        """Return where `node` stands."""
        if not self._positions:
            self._positions.update((member, index) for index, member in enumerate(graph))
        return self._positions[node]

    def write(self, trace: RegionTrace) -> dict[ir.Value, ir.Value]:
        """Write all operations; return for each result of the region the value that takes its place."""
        written = {number for op in trace.ops for number in op.makes}
        values: dict[int, ir.Value] = {}
        for tensor, patch in trace.whole.items():
            given = self.whole[tensor]
            if patch not in written:
                assert given is not None
                values[patch] = given
        for tensor, pieces in trace.pieces.items():
            values.update(zip(pieces, self.handed.get(tensor, ()), strict=tensor in self.handed))
        for op in trace.ops:
            results = self._run(trace, op, values) if op.kernel is not None else self._move(trace, op, values)
            values.update(zip(op.makes, results, strict=True))
        replacements = {}
        for tensor, patch in trace.whole.items():
            given = self.whole[tensor]
            if patch in written:
                assert given is not None
                replacements[given] = values[patch]
        self.handed.update((tensor, [values[number] for number in pieces]) for tensor, pieces in trace.pieces.items())
        return replacements

    def _sizes(self, numbers: Sequence[int]) -> ir.Value:
        """Return a constant of whole numbers."""
        return self.edit.numbers(numbers, f"{self.name}/sizes")

    def _scales(self, scales: Sequence[float]) -> ir.Value:
        """Return a constant of floats."""
        return self.edit.shared(f"{self.name}/scales", np.asarray(scales, np.float32))

    def _dims(self, patch: Patch) -> tuple[int, ...]:
        about, (start, stop) = self.tensors[patch.tensor], patch.rows
        return tuple(stop - start if axis == about.axis else size for axis, size in enumerate(about.dims))

    def _piece(self, stem: str) -> str:
        """Return a name that is free: of the tensor or node that is cut, with the region and the number of the piece."""
        name = f"{stem}/{self.name}/piece{self._counts[stem]}"
        self._counts[stem] += 1
        return self.edit.names.fresh(name)

    def _value(self, patch: Patch) -> ir.Value:
        about = self.tensors[patch.tensor]
        return ir.Value(
            name=self._piece(about.name),
            shape=ir.Shape(self._dims(patch)),
            type=ir.TensorType(about.dtype),
        )

    def _add(
        self,
        operator: tuple[str, str],
        stem: str,
        inputs: Sequence[ir.Value | None],
        results: Sequence[ir.Value],
        attributes: Iterable[ir.Attr] = (),
    ) -> Sequence[ir.Value]:
        domain, op = operator
        name = self._piece(stem)
        notes = module_note(self._path(stem), name)
        self.nodes.append(ir.Node(domain, op, inputs, attributes, outputs=results, name=name, metadata_props=notes))
        return results

    def _path(self, stem: str) -> ModulePath:
        """Return the modules around the node of the model that a piece with the name `stem` is of, or that makes the tensor it is of."""
        if not self._paths:
            for value in self.whole.values():
                if value is not None and value.producer() is not None:
                    self._paths[value.name or ""] = _path_of(value.producer())
            for kernel in self.kernels:
                path = _path_of(kernel.source.node)
                self._paths |= dict.fromkeys(
                    (kernel.name, *(self.tensors[result].name for result in kernel.makes)), path
                )
        return self._paths.get(stem) or self._paths.get(stem.rpartition("/")[0], ())

    def _move(self, trace: RegionTrace, op: PieceOp, values: Mapping[int, ir.Value]) -> Sequence[ir.Value]:
        """Write a Slice of one patch, or a Concat of several."""
        patch, first = trace.patches[op.makes[0]], trace.patches[op.reads[0]]
        about, results = self.tensors[patch.tensor], [self._value(patch)]
        inputs = [values[number] for number in op.reads]
        if about.folds:
            return self._add(("", about.joined_by), f"{about.name}/fold", inputs, results)
        assert about.axis is not None
        if len(inputs) > 1:
            return self._add(("", "Concat"), f"{about.name}/join", inputs, results, [ir.AttrInt64("axis", about.axis)])
        starts, stops = ([end - first.rows[0]] for end in patch.rows)
        bounds, attributes = self.edit.slice_bounds((starts, stops, [about.axis]), f"{self.name}/sizes")
        return self._add(("", "Slice"), f"{about.name}/slice", [*inputs, *bounds], results, attributes)

    def _run(self, trace: RegionTrace, op: PieceOp, values: Mapping[int, ir.Value]) -> Sequence[ir.Value]:
        assert op.kernel is not None
        kernel = self.kernels[op.kernel]
        source: KernelSource = kernel.source
        patch = trace.patches[op.makes[0]]
        results = [self._value(trace.patches[number]) for number in op.makes]
        read = [values[number] for number in op.reads]
        node = source.node
        if node is None:
            if source.join_axis is None:
                return self._add(("", "Add"), kernel.name, read, results)
            axis = ir.AttrInt64("axis", source.join_axis)
            return self._add(("", "Concat"), kernel.name, read, results, [axis])
        given = dict(zip(source.places, read, strict=True))
        named = {self.tensors[trace.patches[number].tensor].name: values[number] for number in op.reads}
        _let_bodies_read(node, {name: value for name, value in named.items() if value.name != name})
        inputs = [
            None if index in source.left_out else given.get(index) or self._whole_or_part(source, index, value, patch)
            for index, value in enumerate(node.inputs)
        ]
        while inputs and inputs[-1] is None:
            inputs.pop()
        outputs = iter(results)
        all_results = [next(outputs) if value.name else ir.Value(name="") for value in node.outputs]
        attributes = self._attributes(source, node, patch)
        if node.op_type in {"Reshape", "Expand"}:
            inputs[1:] = [self._sizes(self._dims(patch))]
        # An operator that is not cut keeps its operands: they may say what has no other form, or be computed.
        is_cut = source.links is not None
        if is_cut and node.op_type in {"Slice", "Pad"}:
            inputs, attributes = self._moved(source, node, patch, trace.patches[op.reads[0]], inputs)
        sources = _sources_of_part(source, patch, self.tensors[patch.tensor])
        if sources is not None and sources.scale:
            return self._from_range(sources, kernel, (trace.patches[op.reads[0]], patch), inputs, results)
        if sources is not None:
            return self._from_sources(sources, kernel, trace.patches[op.reads[0]], patch, read[0], results)
        if is_cut and node.op_type in {"Resize", "Upsample"}:
            inputs = self._scaled(node, patch, inputs)
            attributes = [number for number in attributes if number.name != "axes"]
        self._add((node.domain, node.op_type), kernel.name, inputs, all_results, attributes)
        return results

    def _whole_or_part(self, source: KernelSource, index: int, value: ir.Value | None, patch: Patch) -> ir.Value | None:
        """Return a constant operand, or the part of it that this patch reads."""
        if value is None:
            return None
        cuts = [source.slices[index]] if index in source.slices else []
        link = None if source.links is None else source.links[index]
        if link is not None and link.axis not in {axis for axis, *_ in cuts}:
            window = link.reads(*patch.rows)
            cuts.append((link.axis, window.start, window.stop))
        sizes = self.edit.shapes.sizes(value)
        cuts = [cut for cut in cuts if sizes is None or (cut[1], cut[2]) != (0, sizes[cut[0]])]
        if not cuts:
            return value
        key = (value, *cuts)
        if key not in self._parts:
            self._parts[key] = self._part(value, cuts)
        return self._parts[key]

    def _part(self, value: ir.Value, cuts: Sequence[tuple[int, int, int]]) -> ir.Value:
        """Return the part of a constant from a start to a stop along axes; one made of integers is made of parts of these."""
        name = f"{self.name}/{value.name}"
        node = self.edit.dequantised_part(name, value, cuts)
        if node is None:
            return self.edit.part(name, value, *cuts)
        self.dequantised.append(node)
        return node.outputs[0]

    def _attributes(self, source: KernelSource, node: ir.Node, patch: Patch) -> list[ir.Attr]:
        kept = dict(node.attributes)
        if node.op_type == "Reshape":
            kept.pop("allowzero", None)
        factors = factors_of(node)
        if factors is not None and factors[1] in source.slices and node.attributes.get_int("group", 1) > 1:
            _, start, stop = source.slices[factors[1]]
            kept["group"] = ir.AttrInt64("group", stop - start)
        if not slides(node) or source.links is None:
            return list(kept.values())
        for name in _OPEN:
            kept.pop(name, None)
        return [*kept.values(), *self._padding(source, patch)]

    def _padding(self, source: KernelSource, patch: Patch) -> list[ir.Attr]:
        """Return the padding of this patch alone: of the model's where the patch is at the border, else none."""
        about = self.tensors[patch.tensor]
        known = [
            link.reads(*(patch.rows if axis == about.axis else (0, about.dims[axis])))
            for axis, link in enumerate(source.windows, start=2)
        ]
        attributes = [
            ir.AttrInt64s("pads", [*(window.before for window in known), *(window.after for window in known)])
        ]
        if any(window.extra for window in known):
            attributes.append(ir.AttrInt64s("output_padding", [window.extra for window in known]))
        return attributes

    def _moved(
        self, source: KernelSource, node: ir.Node, patch: Patch, given: Patch, inputs: list[ir.Value | None]
    ) -> tuple[list[ir.Value | None], list[ir.Attr]]:
        """Return the operands and attributes of a Slice or Pad of this patch: of the model's only along axes that are not cut."""
        facts, link = self.edit.view(node), source.links[0] if source.links else None
        about, cut = self.tensors[patch.tensor], dict[int, InputWindow]()
        if about.axis is not None and link is not None and link.sources is None:
            cut[about.axis] = link.reads(*patch.rows)
        if node.op_type == "Slice":
            ranges = {
                axis: (cut[axis].start - given.rows[0], cut[axis].stop - given.rows[0], attribute.step)
                if axis in cut
                else attribute
                for axis, attribute in slice_ranges(facts).items()
            }
            starts, stops, steps = ([attribute[part] for attribute in ranges.values()] for part in range(3))
            bounds, attributes = self.edit.slice_bounds((starts, stops, list(ranges), steps), f"{self.name}/sizes")
            return [*(inputs[:1] if bounds else inputs), *bounds], attributes
        pads, rank = pad_sizes(facts), len(about.dims)
        for axis, window in cut.items():
            pads[axis], pads[axis + rank] = window.before, window.after
        sizes, attributes = self.edit.pads(pads, f"{self.name}/sizes")
        kept = [attribute for attribute in node.attributes.values() if not (attributes and attribute.name == "pads")]
        return [*inputs[:1], *sizes, *inputs[2:3]], [*kept, *attributes]

    def _from_sources(
        self,
        sources: SourceRows,
        kernel: FitKernel,
        given: Patch,
        patch: Patch,
        operand: ir.Value,
        results: Sequence[ir.Value],
    ) -> Sequence[ir.Value]:
        """Write rows that are copies or weighted sums of rows: a Gather, or the product of a matrix with the rows that are read."""
        about = self.tensors[patch.tensor]
        axis, wanted = about.axis, slice(*patch.rows)
        assert axis is not None
        if sources.places is not None:
            places = self._sizes([int(row) - given.rows[0] for row in sources.places[wanted]])
            return self._add(("", "Gather"), kernel.name, [operand, places], results, [ir.AttrInt64("axis", axis)])
        assert sources.weights is not None
        weights = sources.weights[wanted, slice(*given.rows)].astype(about.dtype.numpy())
        is_left = axis == len(about.dims) - 2
        constant = self.edit.shared(f"{self.name}/{kernel.name}/weights", weights if is_left else weights.T)
        inputs = [constant, operand] if is_left else [operand, constant]
        return self._add(("", "MatMul"), kernel.name, inputs, results)

    def _from_range(
        self,
        sources: SourceRows,
        kernel: FitKernel,
        patches: tuple[Patch, Patch],
        inputs: list[ir.Value | None],
        results: Sequence[ir.Value],
    ) -> Sequence[ir.Value]:
        """Write rows that lie between those of a range: a Resize of the range, and a Slice of it inside the same kernel."""
        (given, patch), node = patches, kernel.source.node
        about, (first, last) = self.tensors[patch.tensor], given.rows
        assert about.axis is not None
        resized = self._value(Patch(patch.tensor, (first * sources.scale, last * sources.scale)))
        operands = self._scaled(node, Patch(patch.tensor, (first * sources.scale, last * sources.scale)), inputs)
        kept = [attribute for attribute in node.attributes.values() if attribute.name != "axes"]
        self._add((node.domain, node.op_type), kernel.name, operands, [resized], kept)
        starts, stops = ([row - first * sources.scale] for row in patch.rows)
        bounds, attributes = self.edit.slice_bounds((starts, stops, [about.axis]), f"{self.name}/sizes")
        return self._add(("", "Slice"), f"{about.name}/slice", [resized, *bounds], results, attributes)

    def _scaled(self, node: ir.Node, patch: Patch, inputs: list[ir.Value | None]) -> list[ir.Value | None]:
        """Return the operands of a Resize of fewer rows: the scales of the model, or the sizes of the patch where it gives sizes."""
        scales = resize_scales(self.edit.view(node))
        # Before opset 13 operands that are not given are empty tensors.
        none = None if self.edit.opset > 12 else self._scales(())
        if scales is None:
            return [inputs[0], inputs[1] or none, none, self._sizes(self._dims(patch))]
        if node.op_type == "Upsample" or self.edit.opset < 11:
            return [inputs[0], self._scales(scales)]
        return [inputs[0], inputs[1] or none, self._scales(scales)]


def _sources_of_part(source: KernelSource, patch: Patch, about: FitTensor) -> SourceRows | None:
    """Return the rows that a patch reads where these follow no fixed stride; None for a whole tensor, which its own operator makes."""
    link = source.links[0] if source.links else None
    is_whole = patch.rows == (0, about.rows)
    return None if link is None or is_whole else link.sources


def _let_bodies_read(node: ir.Node, named: Mapping[str, ir.Value]) -> None:
    """Let the bodies of `node`, which is written once, read the new values in the place of those with these names around it."""
    around = {value: named[value.name or ""] for value in dependencies(node) if value.name in named}
    for inner in nodes_inside(node) if around else ():
        for index, value in enumerate(inner.inputs):
            if value in around:
                inner.replace_input_with(index, around[value])


# Regions in local functions: the nodes of each region that was cut become the body of a function, which is called once.


def wrap(model: ir.Model, regions: Iterable[Sequence[ir.Node]]) -> None:
    """Put the nodes of each region of `model` into a function `Region0`, `Region1` ... (in place).

    The inputs of a function are the values that its nodes and their bodies read from outside, weights too. Sizes are Constants inside it.
    """
    for nodes in regions:
        _wrap(model, nodes)


def _wrap(model: ir.Model, nodes: Sequence[ir.Node]) -> None:
    graph = model.graph
    here = {*nodes, *(inner for node in nodes for inner in nodes_inside(node))}
    outputs = [value for node in nodes for value in node.outputs if is_read_outside(value, here)]
    sizes = _sizes(nodes)
    operands = [value for value in read_from_outside(nodes) if value not in sizes]
    results = [ir.Value(name=value.name, type=value.type, shape=value.shape) for value in outputs]
    name = free_function(model, (f"Region{number}" for number in count()))
    graph.insert_after(nodes[-1], ir.Node(keys.DOMAIN, name, operands, outputs=results, name=name))
    for value, result in zip(outputs, results, strict=True):
        uses = [use for use in value.uses() if use.node in here]
        convenience.replace_all_uses_with(value, result, replace_graph_outputs=True)
        for use in uses:
            use.node.replace_input_with(use.idx, value)
    graph.remove(nodes)
    domains = {"", *(node.domain for node in nodes)}
    imports = {domain: version for domain, version in graph.opset_imports.items() if domain in domains}
    add_function(model, name, nodes, operands, outputs, imports, sizes)


def _sizes(nodes: Iterable[ir.Node]) -> dict[ir.Value, None]:
    """Return the constants that say sizes, in the order of first use: compilers need these inline."""
    rows = ((node, operator_of(node)) for node in nodes)
    read = (value for node, row in rows if row is not None and row.shaped_by for value in node.inputs[1:])
    return dict.fromkeys(value for value in read if value is not None and value.const_value is not None)


# Calls of local functions, written out: what is inside them can be cut then.


def inline(model: ir.Model) -> None:
    """Write out the calls of local functions in `model` (in place); meta-ops that run as one kernel stay.

    A function that imports other operator versions than the model stays, too.
    """
    imports = model.graph.opset_imports

    def is_written_out(function: ir.Function) -> bool:
        same = all(imports.get(domain, version) == version for domain, version in function.opset_imports.items())
        return same and not is_kernel(function)

    functions = [function for function in model.functions.values() if is_written_out(function)]
    if functions:
        from onnxtile.fusion.record import calls_inside, renew_records  # few models have functions

        inside = calls_inside(model, functions)
        inline_calls(model, is_written_out)
        renew_records(model, inside)


# The buffers of a schedule in the order in which it would be written: its arena is known before a node of it is made.


def placing_problem(regions: Regions, schedule: FitSchedule) -> Problem:
    """Return the buffers of a schedule, one step for each operation, as the planner places those of the written model.

    A join of consecutive bytes is one buffer with its operands as parts. Raises PaddingOnly.
    """
    kernels, trace = _joined_traces(regions, schedule)
    ranges = _LiveRanges(trace, kernels, regions.all_tensors, regions.network.given)
    problem = Problem(tuple(ranges.buffers()), ALIGNMENT)
    # Buffers without parts are placed much sooner.
    return problem.bounding if problem.bounding.lower_bound == problem.lower_bound else problem


def _joined_traces(regions: Regions, schedule: FitSchedule) -> tuple[list[FitKernel], RegionTrace]:
    """Return the kernels of all regions, and their operations one after the other; of the results, the outputs of the network live on."""
    kernels, joined = list[FitKernel](), RegionTrace()
    for cost in schedule.regions:
        trace, numbers = regions.trace(cost), dict[int, int]()
        for tensor, patch in trace.whole.items():
            if tensor in joined.whole:
                numbers[patch] = joined.whole[tensor]
        for tensor, pieces in trace.pieces.items():
            numbers.update(zip(pieces, joined.pieces.get(tensor, ()), strict=False))
        for patch, about in enumerate(trace.patches):
            if patch not in numbers:
                numbers[patch] = len(joined.patches)
                joined.patches.append(about)
        joined.whole.update((tensor, numbers[patch]) for tensor, patch in trace.whole.items())
        joined.pieces.update((tensor, [numbers[patch] for patch in pieces]) for tensor, pieces in trace.pieces.items())
        for op in trace.ops:
            reads, makes = (tuple([numbers[patch] for patch in ends]) for ends in (op.reads, op.makes))
            joined.ops.append(PieceOp(None if op.kernel is None else op.kernel + len(kernels), reads, makes))
        kernels += regions.cut(cost).kernels
    makers = regions.makers
    joined.whole = {
        tensor: patch
        for tensor, patch in joined.whole.items()
        if tensor not in makers or regions.network.tensors[tensor].is_kept
    }
    return kernels, joined


class _LiveRanges(LiveCount):
    """Notes the steps in which the bytes of each patch live, and the places of joined operands in their result."""

    def __init__(
        self, trace: RegionTrace, kernels: Sequence[FitKernel], tensors: Sequence[FitTensor], given: Collection[int]
    ) -> None:
        self.step, self.is_joining = 0, False
        self.born, self.died = dict[int, int](), dict[int, int]()
        self.shared = set[int]()
        """The patches whose bytes other patches have, too."""
        self.operands: dict[int, list[tuple[int, int]]] = {}
        """The patches whose bytes a join takes over, with their places in bytes, by its result."""
        super().__init__(trace, kernels, tensors, given)
        self.run()

    def _place(self, at: int, op: PieceOp) -> int:
        joins = self._is_join(op)
        self.step, self.is_joining = at, joins or self._is_split(op)
        owners = [self.owner.get(patch, -1) for patch in op.reads]
        live = super()._place(at, op)
        self.is_joining = False
        if joins:
            places = accumulate((self._raw_size(patch) for patch in op.reads), initial=0)
            taken = [(owner, place) for owner, place in zip(owners, places, strict=False) if owner in self.died]
            self.operands[op.makes[0]] = taken
        return live

    def _raw_size(self, patch: int) -> int:
        tensor, (start, stop) = self.trace.patches[patch]
        return self.tensors[tensor].bytes_of(stop - start)

    def _allocate(self, patch: int, size: int) -> None:
        super()._allocate(patch, size)
        self.born[patch] = self.step

    def _share(self, patch: int, operand: int) -> None:
        super()._share(patch, operand)
        self.shared.add(self.owner[operand])

    def _free(self, patch: int) -> None:
        owner = self.owner[patch]
        super()._free(patch)
        if not self.users[owner]:
            self.died[owner] = self.step if self.is_joining else self.step + 1

    def buffers(self) -> Iterator[Buffer]:
        """Yield the buffers; operands of a join are parts of its result, and rows of few planes die after their last read.

        Steps in which no buffer begins are left out.
        """
        inner = {patch for operands in self.operands.values() for patch, _ in operands}
        for patch in self.born:
            parts = () if patch in inner else union(self._parts(patch, 0))
            if parts:
                size, lower = max(part.end for part in parts), min(part.lower for part in parts)
                outline = parts if len(parts) > 1 else ()
                yield Buffer(str(patch), size, lower, max(part.upper for part in parts), outline=outline)

    def _parts(self, patch: int, address: int) -> Iterator[LivePart]:
        """Yield the parts of the buffer of a patch that begins at a place in bytes."""
        lower, upper = self._steps[self.born[patch]], self._steps[self.died.get(patch, len(self.trace.ops))]
        size = min(self.bytes[patch], self._raw_size(patch))
        for part in self._by_rows(patch) if size and patch in self._reads else (LivePart(0, size, lower, upper),):
            yield LivePart(part.start + address, part.end + address, part.lower, part.upper)
        for operand, start in self.operands.get(patch, ()):
            yield from self._parts(operand, address + start)

    @cached_property
    def _steps(self) -> list[int]:
        """The step of each operation among those in which a buffer begins."""
        count = len(self.trace.ops) + 1
        begins = {born for patch, born in self.born.items() if self.bytes[patch]}
        return list(accumulate((step - 1 in begins or step == count - 1 for step in range(1, count)), initial=0))

    @cached_property
    def _reads(self) -> dict[int, list[tuple[int, PatchRange | None]]]:
        """The last steps at which each patch of few planes is read, and the rows that are read; None for all rows."""
        patches = self.trace.patches
        abouts = ((patch, self.tensors[patches[patch].tensor]) for patch in self.died)
        reads: dict[int, list[tuple[int, PatchRange | None]]] = {
            patch: []
            for patch, about in abouts
            if about.has_few_planes and (about.is_given or patch not in self.shared)
        }
        for at, op in enumerate(self.trace.ops):
            is_slice = op.kernel is None and len(op.reads) == 1
            for patch in op.reads:
                if patch in reads:
                    reads[patch].append((self._steps[at + 1], patches[op.makes[0]].rows if is_slice else None))
        return reads

    def _by_rows(self, patch: int) -> Iterator[LivePart]:
        """Yield the parts of a patch of few planes: each row lives until the last step that reads it."""
        tensor, (first, last) = self.trace.patches[patch]
        about, lower, reads = self.tensors[tensor], self._steps[self.born[patch]], self._reads[patch]
        row = about.row_bytes // about.planes
        whole = max((end for end, rows in reads if rows is None), default=lower + 1)
        yield LivePart(0, self._raw_size(patch), lower, whole)
        for end, rows in reads:
            if rows is not None and end > whole:
                starts = (plane * (last - first) - first for plane in range(about.planes))
                yield from (LivePart((at + rows[0]) * row, (at + rows[1]) * row, lower, end) for at in starts)
