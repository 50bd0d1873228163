"""Operators of onnxruntime that multiply no matrices.

https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md.
"""

from __future__ import annotations

from onnxtile.inspect.work import Count, Rule, Site

_NAMES = (
    *("Gelu", "FastGelu", "BiasGelu", "QuickGelu", "BiasSplitGelu", "BiasAdd", "BiasSoftmax", "BiasDropout"),
    *("LayerNormalization", "SimplifiedLayerNormalization", "SkipLayerNormalization", "GroupNorm", "SkipGroupNorm"),
    *("SkipSimplifiedLayerNormalization", "EmbedLayerNormalization", "RotaryEmbedding", "GatherBlockQuantized"),
    *("QuantizeLinear", "DequantizeLinear", "QLinearAdd", "QLinearMul", "QLinearSigmoid", "QLinearLeakyRelu"),
    *("QLinearSoftmax", "QLinearAveragePool", "QLinearGlobalAveragePool", "QLinearConcat", "QLinearWhere"),
    *("QLinearReduceMean", "NhwcMaxPool", "Pad", "Unique", "GatherND", "Trilu", "Inverse", "ExpandDims"),
)


def _count(_site: Site) -> Count:
    return Count(0)


RULE = Rule("without products", frozenset(f"com.microsoft::{name}" for name in _NAMES), _count)
