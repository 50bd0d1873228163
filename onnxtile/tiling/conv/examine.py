"""From limits to the choices for one convolution."""

from __future__ import annotations

from typing import Any

import onnx_ir as ir

from onnxtile.errors import Infeasible
from onnxtile.tiling.accumulate import Accumulation
from onnxtile.tiling.choice import Choice
from onnxtile.tiling.conv.choice import Bounds, ConvWork, front
from onnxtile.tiling.conv.emit import count_nodes, most_nodes
from onnxtile.tiling.conv.grid import ConvGrid
from onnxtile.tiling.conv.layer import Convolution
from onnxtile.tiling.grid import Axis
from onnxtile.tiling.limits import Limits, Window
from onnxtile.tiling.product import Facts, NotTiled, require_dtypes, times_sign
from onnxtile.tiling.sites import Candidate


def examine(name: str, node: ir.Node, layer: Convolution, limits: Limits, facts: Facts, how: Accumulation) -> Candidate:
    """Return the choices for a convolution.

    Raises NotTiled with the reason where it cannot be cut or nobody asked for that, Infeasible where nothing fits.
    """
    _require_asked(layer, limits)
    require_dtypes(layer.operands, limits)
    _require_cuttable(layer, limits, facts)
    work = work_of(layer)
    bounds = Bounds.of(limits, layer.kernel, len(layer.slides))
    if bounds.channels == 0:
        raise Infeasible(
            f"no tile of {name!r} is within the limits: its kernel has {layer.kernel} elements, and K is {limits.k} at most",
            hint=f"raise --max-k to {layer.kernel}, or K of [operator.{layer.tile}] in the limits file",
        )
    if not limits.asks_for_choice:
        grid = _fullest(layer, bounds)
        for slide, axis in zip(layer.slides, grid.spatial, strict=True):
            slide.require_input(axis.stretch(index) for index in range(axis.count if axis.is_cut else 0))
        number = most_nodes(layer, grid, how) if grid.is_cut else 1
        return Candidate(node, name, layer, (Choice((), grid.order, number, 0, 0),), lambda _: grid)

    def nodes(groups: Any, *rest: Any) -> Any:
        *spatial, k, n, order = rest
        return count_nodes(layer, (groups, tuple(spatial), k, n), order, how)

    choices = front(work, limits, nodes)
    if not choices:
        raise _infeasible(name, work, limits)
    bound = None if limits.memory is None else work.lower_bound
    return Candidate(node, name, layer, choices, lambda choice: _grid(layer, choice), True, bound)


def work_of(layer: Convolution) -> ConvWork:
    """Return what a convolution of known sizes asks of the memory."""
    size = int(layer.dtype.itemsize)
    batch = layer.x.dims[0] if isinstance(layer.x.dims[0], int) else 1
    bias = 0 if layer.bias is None else size
    return ConvWork(layer.groups, layer.channels, layer.filters, layer.slides, batch, (size, size, size), bias)


def _require_asked(layer: Convolution, limits: Limits) -> None:
    if limits.window is not None:
        return
    sizes = (layer.m, layer.k, layer.n)
    within = all(
        bound is None or (isinstance(size, int) and size <= bound)
        for size, bound in zip(sizes, limits.bounds, strict=True)
    )
    if within and not limits.asks_for_choice:
        raise NotTiled(f"{times_sign(sizes)} is within the limits")
    raise NotTiled(
        f"a convolution, {times_sign(sizes)} as a product, is cut where it is asked for: --conv, "
        f"or [operator.{layer.tile}] in the limits file"
    )


def _require_cuttable(layer: Convolution, limits: Limits, facts: Facts) -> None:
    """Raise NotTiled where the limits ask for what no convolution can be cut to, or for sizes that are not known."""
    if limits.pad:
        raise NotTiled(
            "a convolution is not filled up to tiles of one size (pad = true): "
            f"[operator.{layer.tile}] with pad = false in the limits file has it cut"
        )
    if limits.multiples[0] > 1:
        raise NotTiled("the rows and columns of a convolution are not cut into multiples")
    if limits.asks_for_choice and not isinstance(layer.x.dims[0], int):
        raise NotTiled(facts.unknown(layer.x.value, 0))
    window = limits.window or Window()
    own = (window.rows, window.columns)[-len(layer.slides) :]
    cut = [bound is not None or limits.m is not None or limits.asks_for_choice for bound in own]
    for axis, slide in enumerate(layer.slides):
        # Where one axis is cut, the window of a tile says where it lies along the other, too.
        if any(cut) and not slide.is_known:
            raise NotTiled(facts.unknown(layer.x.value, 2 + axis))
        if cut[axis] and limits.asks_for_choice:
            slide.require_reachable()


def _fullest(layer: Convolution, bounds: Bounds) -> ConvGrid:
    """Return the cuts of the largest tiles within the bounds: whole rows where they fit, else parts of one."""
    pixels = bounds.pixels
    spatial: list[Axis] = []
    for slide, bound in reversed(list(zip(layer.slides, bounds.spatial, strict=True))):
        if not isinstance(slide.out, int) or (bound is None and pixels is None):
            size = slide.out if isinstance(slide.out, int) else None
            spatial.append(Axis(size, size))
            continue
        step = min(slide.out, *(most for most in (bound, pixels) if most is not None))
        pixels = None if pixels is None else pixels // step
        spatial.append(Axis(slide.out, step))
    together = bounds.groups(ConvWork(layer.groups, layer.channels, layer.filters, layer.slides))
    return ConvGrid(
        Axis(layer.groups, together),
        tuple(reversed(spatial)),
        Axis(layer.channels, _step(layer.channels, bounds.channels, bounds.channel_multiple)),
        Axis(layer.filters, _step(layer.filters, bounds.filters, bounds.filter_multiple)),
    )


def _step(size: int, bound: int | None, multiple: int) -> int:
    if bound is None or bound >= size:
        return size
    if bound < multiple:
        raise Infeasible(f"no {bound} channels are a multiple of {multiple}", hint="raise the limits")
    return bound // multiple * multiple


def _grid(layer: Convolution, choice: Choice) -> ConvGrid:
    groups, *steps, channels, filters = choice.tile
    outs = (slide.out for slide in layer.slides)
    spatial = tuple(Axis(out, step) for out, step in zip(outs, steps, strict=True) if isinstance(out, int))
    return ConvGrid(
        Axis(layer.groups, groups), spatial, Axis(layer.channels, channels), Axis(layer.filters, filters), choice.order
    )


def _infeasible(name: str, work: ConvWork, limits: Limits) -> Infeasible:
    """Return the error that says what the smallest tile needs."""
    none = f"no tile of {name!r} is within the limits: the smallest"
    bounds = Bounds.of(limits, work.kernel, len(work.slides))
    channels, filters = min(bounds.channel_multiple, work.channels), min(bounds.filter_multiple, work.filters)
    least = int(work.held(1, [1] * len(work.slides), channels, filters))
    if limits.memory is not None and least > limits.memory:
        reason = f"{none} holds {least:,} bytes, and the memory is {limits.memory:,}"
        return Infeasible(reason, hint=f"raise the memory to {least} bytes or more")
    largest = int(max(work.blocks(1, [1] * len(work.slides), channels, filters)))
    return Infeasible(
        f"{none} has a block of {largest:,} elements, more than the largest tensor", hint="raise the limits"
    )
