"""From a Conv or ConvTranspose node to what tile cuts."""

from __future__ import annotations

import onnx_ir as ir

from onnxtile.tiling.conv.layer import Convolution
from onnxtile.tiling.conv.slide import Slide
from onnxtile.tiling.product import FLOATS, Dims, Facts, NotTiled, Operand, required_input, times_sign

_PADDING = ("auto_pad", "pads", "output_padding", "output_shape")
_SPATIAL_AXES = (1, 2)


def convolution(node: ir.Node, facts: Facts, *, transposed: bool) -> Convolution:
    """Return what `node` computes. Raises NotTiled with the reason where it cannot be cut."""
    x_value, w_value = required_input(node, 0), required_input(node, 1)
    dtype = facts.dtype(x_value, node.op_type, FLOATS)
    facts.require_dtype(w_value, dtype)
    dims, kernel = facts.dims(x_value), _known(w_value, facts)
    rank = len(dims) - 2
    if rank not in _SPATIAL_AXES:
        raise NotTiled(f"it slides along {rank} axes: convolutions along one or two are cut")
    if len(kernel) != len(dims):
        raise NotTiled(f"its weights of shape {times_sign(kernel)} do not fit an input of {len(dims)} dimensions")
    groups = node.attributes.get_int("group", 1)
    if not isinstance(dims[1], int):
        raise NotTiled(facts.unknown(x_value, 1))
    channels, filters = _channels(kernel, groups, dims[1], transposed=transposed)
    slides = tuple(slide.over(dims[2 + i]) for i, slide in enumerate(_slides(node, kernel[2:], transposed=transposed)))
    out = _result(node, facts, slides, (dims[0], groups * filters))
    if any(isinstance(size, int) and size < 1 for size in (*dims, *kernel, *out)):
        raise NotTiled("a convolution without elements")
    attributes = tuple(a for name, a in node.attributes.items() if name not in {*_PADDING, "group"})
    padding = tuple(a for name, a in node.attributes.items() if name in _PADDING)
    # Rows of the weights lie along output channels, columns along input channels.
    w = Operand(w_value, kernel, (1, 0) if transposed else (0, 1), False, w_value in facts.constants, dtype)
    return Convolution(
        x=Operand(x_value, dims, (None, 1), transposed=False, constant=x_value in facts.constants, dtype=dtype),
        w=w,
        bias=_bias(node, facts, groups * filters, dtype),
        dims=out,
        dtype=dtype,
        groups=groups,
        channels=channels,
        filters=filters,
        slides=slides,
        tile=node.op_type,
        attributes=attributes,
        padding=padding,
    )


def _known(value: ir.Value, facts: Facts) -> tuple[int, ...]:
    dims = facts.dims(value)
    sizes = tuple(dim for dim in dims if isinstance(dim, int))
    if len(sizes) < len(dims):
        raise NotTiled(facts.unknown(value, next(i for i, dim in enumerate(dims) if not isinstance(dim, int))))
    return sizes


def _channels(kernel: tuple[int, ...], groups: int, channels: int, *, transposed: bool) -> tuple[int, int]:
    """Return the input and output channels of a group. Raises NotTiled where weights and input do not fit."""
    first, second = kernel[:2]
    inputs = first if transposed else second * groups
    if groups < 1 or first % groups or inputs != channels:
        raise NotTiled(
            f"its weights of shape {times_sign(kernel)} in {groups} groups do not fit {channels} input channels"
        )
    return (first // groups, second) if transposed else (second, first // groups)


def _slides(node: ir.Node, kernel: tuple[int, ...], *, transposed: bool) -> list[Slide]:
    rank = len(kernel)

    def ints(name: str, default: int, count: int = rank) -> list[int]:
        return list(node.attributes.get_ints(name, [default] * count) or [])

    pads = ints("pads", 0, 2 * rank)
    strides, dilations, extra = ints("strides", 1), ints("dilations", 1), ints("output_padding", 0)
    wanted = ints("output_shape", 0)[-rank:] if "output_shape" in node.attributes else [None] * rank
    if any(len(each) != size for each, size in ((pads, 2 * rank), (strides, rank), (dilations, rank), (extra, rank))):
        raise NotTiled(f"its attributes are not for {rank} spatial axes")
    if min(pads) < 0:
        raise NotTiled("its padding is negative")
    auto = node.attributes.get_string("auto_pad", "NOTSET")
    return [
        Slide(
            kernel=kernel[i],
            stride=strides[i],
            dilation=dilations[i],
            before=pads[i],
            after=pads[rank + i],
            output_padding=extra[i],
            auto=auto,
            wanted=wanted[i],
            transposed=transposed,
        )
        for i in range(rank)
    ]


def _result(node: ir.Node, facts: Facts, slides: tuple[Slide, ...], first: Dims) -> Dims:
    """Return the dimensions of the result, symbols where the shapes' table has them."""
    table = facts.shapes.dims(node.outputs[0]) or ()
    known = table[2:] if len(table) == 2 + len(slides) else (None,) * len(slides)
    sizes = (slide.out if isinstance(slide.out, int) else dim for slide, dim in zip(slides, known, strict=True))
    return (*first, *sizes)


def _bias(node: ir.Node, facts: Facts, filters: int, dtype: ir.DataType) -> Operand | None:
    value = node.inputs[2] if len(node.inputs) > 2 else None
    if value is None:
        return None
    facts.require_dtype(value, dtype)
    dims = _known(value, facts)
    if dims != (filters,):
        raise NotTiled(f"its bias of shape {times_sign(dims)} is not one number for each of {filters} output channels")
    return Operand(value, dims, (None, 0), transposed=False, constant=value in facts.constants, dtype=dtype)
