"""All rewrites that are made before a model is cut, in their order."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from types import MappingProxyType

import onnx_ir as ir

from onnxtile.fitting.editing import ModelEdit, copy_of, leave_out_unread, write_known_sizes
from onnxtile.fitting.regions import Regions
from onnxtile.fitting.rewrites.means import (
    mean_before_sum,
    pool_before_convolution,
    run_again,
    scale_by_extremes,
    second_passes,
    sum_means,
    sum_norms,
    sum_quantised_means,
)
from onnxtile.fitting.rewrites.order import (
    delay_nodes,
    hasten_nodes,
    join_islands,
    long_skips,
    make_again,
    order_as_planned,
    reduce_together,
)
from onnxtile.fitting.rewrites.plain_attention import write_attention
from onnxtile.fitting.rewrites.sink_concats import group_outputs, run_items_apart, sink_concats
from onnxtile.fitting.rewrites.split_tokens import (
    PieceReads,
    is_attention,
    is_recurrent,
    reads_of_pieces,
    separate_directions,
    split_heads,
    split_tokens,
)
from onnxtile.fitting.rewrites.strip_forms import (
    join_boxes,
    pool_whole_maps,
    read_by_rows,
    rename_transposes,
    repeat_pixels,
    separate_axes,
    slice_parts,
    split_packed_products,
    stream_rows,
)
from onnxtile.model import keys
from onnxtile.model.constants import Constants, prune
from onnxtile.model.node_kinds import is_quantised
from onnxtile.model.save import raise_ir_version
from onnxtile.model.topology import all_values
from onnxtile.shapes.resolve import Shapes, known_shapes
from onnxtile.system.dataclass import dataclass


@dataclass(frozen=True)
class ModelRewrite:
    """One rewrite of a model before it is cut: what was done, and the names of the nodes that it was done to."""

    kind: str
    text: str
    nodes: tuple[str, ...]


@dataclass(frozen=True)
class UnblockedModel:
    """A rewritten copy of a model, the shapes of its values, and the rewrites."""

    model: ir.Model
    shapes: Shapes
    rewrites: tuple[ModelRewrite, ...]


_OF_EXTREMES = "its scale is that of the least and the largest element"


def unblock(
    original: ir.Model, shapes: Shapes, *, exact: bool, more_macs: bool = True, keeps_means: bool = False
) -> UnblockedModel | None:
    """Return a rewritten copy of a model that computes the same; None where no rewrite applies.

    With `exact`, only rewrites are made whose results are equal to the last bit; without `more_macs`, only those that multiply no more.
    With `keeps_means`, no mean is taken of anything else, or as a sum of strips: a model that amplifies rounding may need that.
    """
    edit = _edit_of_copy(original, shapes)
    model = edit.model
    rewrites: list[ModelRewrite] = []
    sizes = write_known_sizes(edit)
    _note(rewrites, "rewrite", "sizes that are known are constants", sizes)
    edit = ModelEdit(model, known_shapes(model, edit.shapes)) if sizes else edit
    _note(rewrites, "rewrite", "an optional result that nothing reads is left out", leave_out_unread(edit))
    boxes = join_boxes(edit)
    _note(rewrites, "rewrite", "what it overwrites is joined with what is beside", boxes)
    if boxes:
        edit.drop_unread()
        edit = ModelEdit(model, known_shapes(model, edit.shapes))
    if not is_quantised(model):
        whole = pool_whole_maps(edit, exact=exact)
        _note(rewrites, "rewrite", "it pools the whole map", whole)
        pixels = repeat_pixels(edit, exact=exact)
        _note(rewrites, "rewrite", "it repeats one pixel", pixels)
        edit = ModelEdit(model, known_shapes(model, edit.shapes)) if whole or pixels else edit
        if not exact:
            if not keeps_means:
                _take_means_otherwise(edit, rewrites, more_macs=more_macs)
            _note(
                rewrites,
                "rewrite",
                "each part of packed products is a product",
                split_packed_products(edit, edit.least),
            )
            edit.drop_unread()
            prune(set(all_values(model)), edit.constants)
            edit = ModelEdit(model, known_shapes(model, edit.shapes))
        apart = separate_axes(edit, exact=exact)
        _note(rewrites, "rewrite", "rows are resized or mirrored before columns", apart)
        edit = ModelEdit(model, known_shapes(model, edit.shapes)) if apart else edit
        joins = sink_concats(edit, exact=exact)
        _note(rewrites, "rewrite", "its parts are joined after the nodes that follow", joins)
        edit = ModelEdit(model, known_shapes(model, edit.shapes)) if joins else edit
        _note(rewrites, "order", "runs as late as it can", delay_nodes(edit))
        _note(rewrites, "order", "runs as early as it can", hasten_nodes(edit))
        _note(rewrites, "order", "runs beside another reduction of its operand", reduce_together(edit))
    else:
        copies = separate_axes(edit, exact=True)
        _note(rewrites, "rewrite", "rows are resized or mirrored before columns", copies)
        means = sum_quantised_means(edit) if not exact and more_macs else []
        _note(rewrites, "rewrite", "the mean is a sum of integers", means)
        scales = scale_by_extremes(edit)
        _note(rewrites, "rewrite", _OF_EXTREMES, scales)
        if copies or means:
            edit.drop_unread()
            edit = ModelEdit(model, known_shapes(model, edit.shapes))
        joins = sink_concats(edit, exact=exact)
        _note(rewrites, "rewrite", "its parts are joined after the nodes that follow", joins)
    return UnblockedModel(model, known_shapes(model, edit.shapes), tuple(rewrites)) if rewrites else None


def _take_means_otherwise(edit: ModelEdit, rewrites: list[ModelRewrite], *, more_macs: bool) -> None:
    """Take means before convolutions and sums, and add up means and norms strip by strip."""
    before = pool_before_convolution(edit) if more_macs else []
    _note(rewrites, "rewrite", "the mean is taken before the pointwise convolution", before)
    _note(rewrites, "rewrite", "the means of its summands are added up", mean_before_sum(edit))
    _note(rewrites, "rewrite", "the mean is a sum of strips", sum_means(edit))
    _note(rewrites, "rewrite", "mean and variance are sums of strips", sum_norms(edit))


def rows_streamed(original: ir.Model, shapes: Shapes, axes: Mapping[str, int | None]) -> UnblockedModel:
    """Return a copy of a model whose inputs of `axes` come row by row along these axes (None: an input has no rows).

    Raises UsageError for an input that is not there, Infeasible for one without rows.
    """
    edit = _edit_of_copy(original, shapes)
    for name, axis in axes.items():
        stream_rows(edit, name, axis)
    notes: list[ModelRewrite] = [ModelRewrite("stream", "it comes row by row", (name,)) for name in axes]
    return UnblockedModel(edit.model, known_shapes(edit.model, edit.shapes), tuple(notes))


def sizes_written(original: ir.Model, shapes: Shapes) -> UnblockedModel | None:
    """Return a copy of a model in which sizes of tensors are constants, and no Transpose leaves all in its order; None for no change."""
    edit = _edit_of_copy(original, shapes)
    notes: list[ModelRewrite] = []
    _note(notes, "rewrite", "sizes that are known are constants", write_known_sizes(edit))
    _note(notes, "rewrite", "it moves no element, and is a Reshape", rename_transposes(edit))
    return UnblockedModel(edit.model, known_shapes(edit.model, edit.shapes), tuple(notes)) if notes else None


def in_order_of_plan(original: ir.Model, shapes: Shapes, results: Sequence[Sequence[str]]) -> UnblockedModel | None:
    """Return a copy of a quantised model whose nodes run in the order of a plan; None where they do, or for any other model.

    `results` has the names of the results of each step of the plan. Every result is equal to the last bit.
    """
    if not is_quantised(original):
        return None
    edit = _edit_of_copy(original, shapes)
    notes: list[ModelRewrite] = []
    _note(notes, "order", "runs as planned", order_as_planned(edit.model, results, edit.random))
    return UnblockedModel(edit.model, known_shapes(edit.model, edit.shapes), tuple(notes)) if notes else None


def batch_apart(original: ir.Model, shapes: Shapes) -> UnblockedModel | None:
    """Return a copy of a model that runs one item of its batch after the other; None without a batch.

    The products of one item may differ from those of the batch in the last bits.
    """
    if is_quantised(original):
        return None
    edit = _edit_of_copy(original, shapes)
    notes: list[ModelRewrite] = []
    _note(notes, "batch", "one item after the other", run_items_apart(edit))
    prune(set(all_values(edit.model)), edit.constants)
    return UnblockedModel(edit.model, known_shapes(edit.model, edit.shapes), tuple(notes)) if notes else None


def passed_twice(
    original: ir.Model, shapes: Shapes, regions: Regions, capacity: int, most_macs: float
) -> UnblockedModel | None:
    """Return a copy of a model in which operands of reductions that exceed the `capacity` in bytes are made twice.

    `regions` are those of the model. None where no such operand is made from narrower tensors, or more than `most_macs`
    multiply-accumulates would be done again.
    """
    if is_quantised(original):
        return None
    edit = _edit_of_copy(original, shapes)
    copies = dict(zip(original.graph, edit.model.graph, strict=True))
    kernels = [(copies[second.source.node], second.macs) for second in regions.network.kernels]
    wide = {node for (node, _), whole in zip(kernels, regions.whole, strict=True) if whole.peak > capacity}
    # Rows that come from outside come once.
    streamed = {value for value in edit.model.graph.inputs if keys.STREAM in value.metadata_props}
    passes = [
        second
        for second in second_passes(edit, wide)
        if streamed.isdisjoint(value for node in second.nodes for value in node.inputs)
    ]
    macs = dict(kernels)
    if sum(macs.get(node, 0) for second in passes for node in second.nodes) > most_macs:
        return None
    for second in passes:
        run_again(edit, second)
    notes: list[ModelRewrite] = []
    _note(notes, "rewrite", "its operand is made twice", [second.reduction for second in passes])
    return UnblockedModel(edit.model, known_shapes(edit.model, edit.shapes), tuple(notes)) if passes else None


def skips_made_again(
    original: ir.Model, shapes: Shapes, regions: Regions, most_macs: float
) -> Iterator[UnblockedModel]:
    """Yield copies of a model in which wide tensors that wait long for their last readers are made again: the best one, then all.

    At most `most_macs` multiply-accumulates are done again. Nothing where no tensor is made so from narrower ones.
    """
    tried = 0
    for count in (1, len(original.graph)):
        edit = _edit_of_copy(original, shapes)
        skips = long_skips(edit, regions, dict(zip(original.graph, edit.model.graph, strict=True)))
        total = accumulate(skip.macs for skip in skips)
        chosen = [skip for skip, macs in zip(skips, total, strict=True) if macs <= most_macs][:count]
        if len(chosen) == tried:
            return
        tried = len(chosen)
        notes: list[ModelRewrite] = []
        _note(notes, "rewrite", "it is made again for its last readers", make_again(edit, chosen))
        yield UnblockedModel(edit.model, known_shapes(edit.model, edit.shapes), tuple(notes))


_GROUPS = (4, 16)
"""The groups of channels of an output that are tried."""
_MATTERS = 8
"""An output of this part of the largest sum of live bytes is made in groups, and none of fewer bytes."""


def outputs_grouped(original: ir.Model, shapes: Shapes, regions: Regions, *, exact: bool) -> Iterator[UnblockedModel]:
    """Yield copies of a model of floats whose outputs are made in groups of channels, where a copy would join their rows."""
    least = max((region.peak for region in regions.whole), default=0) // _MATTERS
    kept = (about for about in regions.network.tensors if about.is_kept and about.size >= max(least, 1))
    wide = {about.name: about.planes for about in kept if not about.has_contiguous_rows}
    most = 0 if is_quantised(original) else max(wide.values(), default=0)
    for count in dict.fromkeys(min(count, most) for count in _GROUPS if most):
        edit = _edit_of_copy(original, shapes)
        notes: list[ModelRewrite] = []
        _note(notes, "rewrite", "it is made in groups of channels", group_outputs(edit, wide, count, exact=exact))
        if notes:
            prune(set(all_values(edit.model)), edit.constants)
            yield UnblockedModel(edit.model, known_shapes(edit.model, edit.shapes), tuple(notes))


@dataclass(frozen=True)
class TokenCuts:
    """A model whose attention runs head by head, or with recurrent layers: its tokens can be cut into pieces."""

    model: ir.Model
    shapes: Shapes
    rewrites: tuple[ModelRewrite, ...]

    def reads(self) -> dict[ir.Node, PieceReads]:
        """Return what pieces of the nodes read whose tokens are cut."""
        return reads_of_pieces(ModelEdit(self.model, self.shapes))

    def cut(
        self, count: int, counts: Mapping[int, int] = MappingProxyType({})
    ) -> tuple[UnblockedModel, Mapping[str, int]] | None:
        """Return a copy whose tokens are in `count` pieces, those of the segments of `counts` in fewer; None without tokens.

        With it come the segments of the results that were cut, by their names.
        """
        model, copied = copy_of(self.model, self.shapes)
        edit = ModelEdit(model, copied)
        nodes, segments = split_tokens(edit, count, counts)
        if not nodes:
            return None
        edit.drop_unread()
        prune(set(all_values(model)), Constants(model))
        rewrites = [*self.rewrites]
        most = " at most" if counts else ""
        _note(rewrites, "tokens", f"tokens in {count} pieces{most}", nodes if count > 1 else [])
        return UnblockedModel(model, known_shapes(model, edit.shapes), tuple(rewrites)), segments


def token_cuts(original: ir.Model, shapes: Shapes) -> TokenCuts | None:
    """Return a copy of a model with attention, head by head, or with recurrent layers; None of a model without both.

    Fused attention is written as products. Products of pieces may differ in the last bits.
    """
    edit = _edit_of_copy(original, shapes)
    apart = edit.model
    plain = write_attention(edit)
    directions = separate_directions(edit)
    split_packed_products(edit)
    slice_parts(edit)
    edit.drop_unread()
    edit = ModelEdit(apart, known_shapes(apart, edit.shapes))
    heads = split_heads(edit)
    if not heads and not any(is_recurrent(node) or is_attention(edit, node) for node in apart.graph):
        return None
    read_by_rows(edit)
    # Heads are joined before they are quantised.
    edit = ModelEdit(apart, known_shapes(apart, edit.shapes))
    scales = scale_by_extremes(edit)
    edit.drop_unread()
    if is_quantised(apart):
        edit = ModelEdit(apart, known_shapes(apart, edit.shapes))
        join_islands(edit)
    rewrites: list[ModelRewrite] = []
    _note(rewrites, "rewrite", "attention is written as products", plain)
    _note(rewrites, "rewrite", "each direction is a layer", directions)
    _note(rewrites, "rewrite", _OF_EXTREMES, scales)
    _note(rewrites, "heads", "one head after the other", heads)
    return TokenCuts(apart, known_shapes(apart, edit.shapes), tuple(rewrites))


def _edit_of_copy(original: ir.Model, shapes: Shapes) -> ModelEdit:
    """Return the edit of a copy whose constants are no inputs: one that goes must not become an input alone."""
    model, copied = copy_of(original, shapes)
    raise_ir_version(model)
    return ModelEdit(model, copied)


def _note(rewrites: list[ModelRewrite], kind: str, text: str, nodes: list[ir.Node]) -> None:
    if nodes:
        rewrites.append(ModelRewrite(kind, text, tuple(node.name or node.op_type for node in nodes)))
