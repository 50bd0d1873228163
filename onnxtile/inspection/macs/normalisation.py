"""Normalisations: operations for each element, and for each row over which a mean is taken."""

from __future__ import annotations

import math

from onnxtile.inspection.work import CountedNode, FlopRule, NotKnown

_NORM, _ROOT_MEAN = 5, 3
"""Mean, difference, square, mean and quotient; square, mean and quotient. A scale and a shift are one more each."""
_ROW = 2
"""Epsilon and the root."""


def _count_batch(site: CountedNode) -> int:
    """Count one product and one addition an element: mean, variance, scale and shift are constants, which fold into two."""
    if site.number("training_mode", 0):
        raise NotKnown("no rule counts a BatchNormalization in training mode")
    return 2 * site.elements()


def _count_layer(site: CountedNode) -> int:
    """Count layer normalisations and those by the root of mean squares."""
    sizes, own = site.input(0), _ROOT_MEAN if site.operator in _SQUARES else _NORM
    scaled = site.has(1) + (site.has(2) and site.operator not in _SQUARES)
    rows = math.prod(sizes[: _axis(site, len(sizes))])
    return math.prod(sizes) * (own + scaled) + rows * _ROW


def _count_skip(site: CountedNode) -> int:
    """Count those of onnxruntime that add a second input first: input, skip, scale, shift (not of root means), bias."""
    squares = "Simplified" in site.node.op_type
    scale, bias = (2, 3) if squares else (2, 4)
    shift = 0 if squares else site.has(3)
    each = 1 + (_ROOT_MEAN if squares else _NORM) + site.has(scale) + shift + site.has(bias)
    return site.read() * each + math.prod(site.input(0)[:-1]) * _ROW


def _count_groups(site: CountedNode) -> int:
    """Count normalisations of images over each channel, or each of `num_groups`."""
    sizes = site.input(0)
    rows = sizes[0] * site.number("num_groups", sizes[1])
    return math.prod(sizes) * (_NORM + 2) + rows * _ROW


def _count_local(site: CountedNode) -> int:
    """Count LRN: a square, a sum of `size` squares, a product, an addition, a power and a quotient."""
    return site.elements() * (site.number("size") + 5)


def _count_norm(site: CountedNode) -> int:
    """Count LpNormalization: an absolute value or a square, a sum and a quotient, and a root for each row of squares."""
    rows = site.elements() // max(site.input(0)[_axis(site, len(site.input(0)))], 1)
    return 3 * site.elements() + (rows if site.number("p", 2) == 2 else 0)


def _count_mean_variance(site: CountedNode) -> int:
    sizes = site.input(0)
    axes = {axis % len(sizes) for axis in site.node.attributes.get_ints("axes", (0, 2, 3))}
    rows = math.prod(size for axis, size in enumerate(sizes) if axis not in axes)
    return math.prod(sizes) * _NORM + rows * _ROW


def _count_rotary(site: CountedNode) -> int:
    """Count two products and a sum for each element of the part of a head that is rotated."""
    sizes, part = site.input(0), site.number("rotary_embedding_dim", 0)
    head = sizes[-1] if len(sizes) == 4 else sizes[-1] // site.number("num_heads")
    return 3 * math.prod(sizes) * (part or head) // head


def _axis(site: CountedNode, rank: int) -> int:
    axis = site.number("axis", -1)
    return axis + rank if axis < 0 else axis


_SQUARES = {"RMSNormalization", "SimplifiedLayerNormalization", "com.microsoft::SimplifiedLayerNormalization"}
_SKIPS = {f"com.microsoft::Skip{kind}LayerNormalization" for kind in ("", "Simplified")}

BATCH = FlopRule("batch normalisation", frozenset({"BatchNormalization"}), _count_batch)
LAYER = FlopRule(
    "layer normalisation",
    frozenset({"LayerNormalization", "com.microsoft::LayerNormalization", *_SQUARES}),
    _count_layer,
)
SKIP = FlopRule("layer normalisation of a sum", frozenset(_SKIPS), _count_skip)
GROUPS = FlopRule("group normalisation", frozenset({"GroupNormalization", "InstanceNormalization"}), _count_groups)
LOCAL = FlopRule("local response normalisation", frozenset({"LRN"}), _count_local)
NORM = FlopRule("normalisation by a norm", frozenset({"LpNormalization"}), _count_norm)
MEAN_VARIANCE = FlopRule("mean variance normalisation", frozenset({"MeanVarianceNormalization"}), _count_mean_variance)
ROTARY = FlopRule("rotary embedding", frozenset({"RotaryEmbedding"}), _count_rotary)
