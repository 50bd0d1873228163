"""Operators of onnxruntime that multiply no matrices, and whose other operations are not known.

https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md.
"""

from __future__ import annotations

from onnxtile.inspection.work import CountedNode, OperationCount, Rule

_NAMES = (
    *("BiasSplitGelu", "BiasAdd", "BiasSoftmax", "BiasDropout", "GroupNorm", "SkipGroupNorm"),
    *(
        "EmbedLayerNormalization",
        "RotaryEmbedding",
        "GatherBlockQuantized",
        "QLinearAdd",
        "QLinearMul",
        "QLinearSigmoid",
        "QLinearLeakyRelu",
    ),
    *("QLinearSoftmax", "QLinearAveragePool", "QLinearGlobalAveragePool", "QLinearConcat", "QLinearWhere"),
    *("QLinearReduceMean", "Unique", "Inverse"),
    *("BranchwiseRMSNorm", "GatedAdd", "GatedRMSNorm", "LinearAttentionGate", "ScaledSiLU"),
    *("BifurcationDetector", "CropAndResize", "DynamicTimeWarping", "GatherPacked", "GridSample", "MaxpoolWithMask"),
    *("MRotaryEmbedding", "MurmurHash3", "NGramHashMapping", "NGramRepeatBlock", "QEmbedLayerNormalization", "Range"),
    *("SampleOp", "Tokenizer", "UnfoldTensor", "VarlenNGramHashMapping"),
)


def _count(_site: CountedNode) -> OperationCount:
    return OperationCount(0)


RULE = Rule("without products", frozenset(f"com.microsoft::{name}" for name in _NAMES), _count)
