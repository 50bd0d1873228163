"""Why an operator has no row in a table of the package: by table, each reason with its source, and the operators that it is true of.

Operators of other domains than the standard one are written `domain::Type`. tests/operators/test_tables.py allows no operator that is
neither in a table nor here, and none that is in both.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

ONNX, CONTRIB = "https://onnx.ai/onnx/operators/", "onnxruntime's docs/ContribOperators.md"
RUN = "tests/operators/test_evidence.py runs it over each operand of its result's size"


class No(NamedTuple):
    """A reason and where it is written, or what shows it."""

    reason: str
    source: str


_CONTAINERS = (
    "ConcatFromSequence Optional OptionalGetElement OptionalHasElement SequenceAt SequenceConstruct SequenceEmpty SequenceErase "
    "SequenceInsert SequenceLength SequenceMap SplitToSequence ai.onnx.ml::CastMap ai.onnx.ml::DictVectorizer ai.onnx.ml::ZipMap"
)
_TEXTS = (
    "RegexFullMatch StringConcat StringNormalizer StringSplit TfIdfVectorizer ai.onnx.ml::CategoryMapper ai.onnx.ml::LabelEncoder "
    "com.microsoft::Tokenizer com.microsoft::WordConvEmbedding"
)
_WINDOWS = "BlackmanWindow HammingWindow HannWindow MelWeightMatrix"
_RANDOM = "Bernoulli Multinomial RandomNormal RandomNormalLike RandomUniform RandomUniformLike com.microsoft::Sampling"
_BODIES = "If Loop Scan com.microsoft::BeamSearch com.microsoft::GreedySearch com.microsoft::WhisperBeamSearch"
_DATA_SIZES = (
    "Compress NonMaxSuppression NonZero Unique com.microsoft::BifurcationDetector com.microsoft::DynamicTimeWarping "
    "com.microsoft::Unique"
)
_CLASSICAL = (
    "ai.onnx.ml::ArrayFeatureExtractor ai.onnx.ml::Binarizer ai.onnx.ml::FeatureVectorizer ai.onnx.ml::Imputer "
    "ai.onnx.ml::LinearClassifier ai.onnx.ml::LinearRegressor ai.onnx.ml::Normalizer ai.onnx.ml::OneHotEncoder "
    "ai.onnx.ml::SVMClassifier ai.onnx.ml::SVMRegressor ai.onnx.ml::Scaler ai.onnx.ml::TreeEnsemble "
    "ai.onnx.ml::TreeEnsembleClassifier ai.onnx.ml::TreeEnsembleRegressor"
)
_REMOVED = "Affine Crop DynamicSlice ImageScaler MemcpyFromHost MemcpyToHost ParametricSoftplus Scale ScaledTanh"
_LOSSES = "NegativeLogLikelihoodLoss SoftmaxCrossEntropyLoss"
_STATEFUL_CONVOLUTIONS = (
    "CausalConvWithState com.microsoft::CausalConvWithState com.microsoft::VarlenCausalConvWithState"
)
_RECURRENT = "GRU LSTM RNN com.microsoft::AttnLSTM com.microsoft::DynamicQuantizeLSTM"
_ATTENTION = (
    "Attention LinearAttention ai.onnx.preview::FlexAttention com.microsoft::Attention com.microsoft::DecoderMaskedMultiHeadAttention "
    "com.microsoft::GatedDeltaNet com.microsoft::GroupQueryAttention com.microsoft::LinearAttention com.microsoft::MultiHeadAttention "
    "com.microsoft::QAttention com.microsoft::SparseAttention"
)
_PRODUCTS = (
    "com.microsoft::DynamicQuantizeMatMul com.microsoft::FusedMatMul com.microsoft::MatMulBnb4 com.microsoft::MatMulFpQ4 "
    "com.microsoft::MatMulInteger16 com.microsoft::MatMulIntegerToFloat com.microsoft::MatMulNBits "
    "com.microsoft::SparseToDenseMatMul com.microsoft::TransposeMatMul"
)
_EXPERTS = "com.microsoft::MoE com.microsoft::MoEGroupRouter com.microsoft::QMoE"
_EMBEDDINGS = (
    "com.microsoft::EmbedLayerNormalization com.microsoft::NGramHashMapping com.microsoft::QEmbedLayerNormalization "
    "com.microsoft::VarlenNGramHashMapping"
)
_STREAMS = "com.microsoft::EngramGate com.microsoft::HyperConnectionPostMix com.microsoft::HyperConnectionPreMix"

_NO_TENSOR = No("a sequence, an optional or a map has no fixed bytes", ONNX)
_NO_NUMBERS = No("texts have no fixed bytes, and what is made of texts is a small table", ONNX)
_OWN_SIZE = No("its result has other sizes than any operand, or no operand has elements", ONNX)
_DRAWN = No("its numbers are drawn anew in each run: no comparison of two runs shows what it reads", ONNX)
_BODY = No("what it reads and writes is what its bodies do: each has a plan of its own", "docs/plan.md")
_SMALL = No("classical machine learning reads a row of features, of a few bytes", ONNX)
_GONE = No("ONNX removed it before version 1.6; only onnxruntime still takes it", "onnxruntime's contrib_defs.cc")
_BY_DATA = No("how many elements its result has depends on the data", "onnxtile/shapes/value.py")

OVER: Mapping[No, str] = {
    _NO_TENSOR: _CONTAINERS,
    _NO_NUMBERS: _TEXTS,
    _DRAWN: _RANDOM,
    _BODY: _BODIES,
    _BY_DATA: _DATA_SIZES,
    _SMALL: _CLASSICAL,
    _GONE: _REMOVED,
    _OWN_SIZE: f"{_WINDOWS} {_EMBEDDINGS} AffineGrid ArgMax ArgMin ConstantOfShape Det DynamicQuantizeLinear OneHot Range Shape "
    "Size com.microsoft::CDist com.microsoft::CropAndResize com.microsoft::ExpandDims com.microsoft::Range SwiGLU "
    "com.microsoft::HyperConnectionPreMix com.microsoft::MoEGroupRouter",
    No("an element of a product is a sum over elements that others are sums over, too", RUN): (
        f"{_PRODUCTS} Conv ConvInteger ConvTranspose DeformConv Einsum MatMul MatMulInteger QLinearConv QLinearMatMul "
        f"{_STATEFUL_CONVOLUTIONS} com.microsoft::ConvTransposeWithDynamicPads com.microsoft::Inverse "
        f"com.microsoft::MoE com.microsoft::QGemm "
        "com.microsoft::QLinearConv com.microsoft::QMoE DFT STFT com.microsoft::HyperConnectionPostMix com.microsoft::EngramGate"
    ),
    No("a row of its result is made of all rows, or of a state that it keeps", ONNX): f"{_ATTENTION} {_RECURRENT}",
    No("a window reads neighbours that are written already", RUN): (
        "AveragePool LRN LpPool MaxPool MaxRoiPool RoiAlign GridSample com.microsoft::GridSample com.microsoft::MaxpoolWithMask "
        "com.microsoft::NhwcMaxPool com.microsoft::QLinearAveragePool Resize Upsample"
    ),
    No("it moves elements to other places, or takes some of them", RUN): (
        "CenterCropPad Col2Im Concat DepthToSpace Expand Gather GatherElements GatherND MaxUnpool Pad ReverseSequence Slice SpaceToDepth "
        "Split Tile TopK Transpose "
        "com.microsoft::GatherBlockQuantized com.microsoft::GatherND com.microsoft::GatherPacked com.microsoft::Pad "
        "com.microsoft::QLinearConcat com.microsoft::UnfoldTensor"
    ),
    No("its result is smaller than its operand, but for axes of one element", ONNX): (
        "GlobalAveragePool GlobalLpPool GlobalMaxPool ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceMax ReduceMean ReduceMin "
        "ReduceProd ReduceSum ReduceSumSquare com.microsoft::QLinearGlobalAveragePool"
    ),
    No("its kernel reads elements that it has overwritten", RUN): (
        "CumProd CumSum Hardmax com.microsoft::FastGelu com.microsoft::QuickGelu"
    ),
    No(
        "a kernel without vectors reads the other half of a row after it has written it",
        "mlas/lib/rotary_embedding.cpp",
    ): ("RotaryEmbedding com.microsoft::MRotaryEmbedding com.microsoft::RotaryEmbedding"),
    No("it is for training; it has a second result that is as large as the operand", ONNX): _LOSSES,
}
"""Why no result of an operator may be written over an operand (onnxtile/planning/aliases.py)."""

AXES: Mapping[No, str] = {
    _NO_TENSOR: _CONTAINERS,
    _NO_NUMBERS: _TEXTS,
    _DRAWN: _RANDOM,
    _BODY: _BODIES,
    _BY_DATA: _DATA_SIZES,
    _SMALL: _CLASSICAL,
    _GONE: _REMOVED,
    No(
        "its result is made of sizes, or of few numbers", ONNX
    ): f"{_WINDOWS} ConstantOfShape EyeLike OneHot Range Shape Size com.microsoft::Range AffineGrid",
    No("a part would have to know where it lies in the whole", ONNX): (
        "Trilu com.microsoft::Trilu com.microsoft::NGramRepeatBlock CenterCropPad com.microsoft::MRotaryEmbedding "
        "com.microsoft::RotaryEmbedding"
    ),
    No("each element may read or update any element of an operand", ONNX): (
        "Col2Im DeformConv GatherElements GatherND GridSample MaxRoiPool "
        "MaxUnpool ReverseSequence RoiAlign Scatter ScatterElements ScatterND "
        "TensorScatter TopK com.microsoft::CropAndResize com.microsoft::GatherBlockQuantized com.microsoft::GatherND "
        "com.microsoft::GatherPacked com.microsoft::GridSample com.microsoft::UnfoldTensor"
    ),
    No("its scale is that of the whole operand", ONNX): "DynamicQuantizeLinear com.microsoft::DynamicQuantizeMatMul",
    No(
        "a transform or a factorisation reads the whole of its axes", ONNX
    ): "DFT Det STFT com.microsoft::CDist com.microsoft::Inverse",
    No(
        "fuse without --lower leaves products of matrices, which are cut", "docs/fit.md"
    ): f"{_ATTENTION} {_EMBEDDINGS} {_EXPERTS}",
    No("its steps depend on each other", ONNX): f"{_RECURRENT} {_STATEFUL_CONVOLUTIONS}",
    No("its equation may be any sum", ONNX): "Einsum",
    No("onnxruntime writes it when it optimises a model: plan the model before that", CONTRIB): (
        "com.microsoft::BranchwiseRMSNorm com.microsoft::ConvTransposeWithDynamicPads com.microsoft::ExpandDims com.microsoft::FusedConv "
        "com.microsoft::FusedGemm com.microsoft::FusedMatMul com.microsoft::LinearAttentionGate com.microsoft::MatMulBnb4 "
        "com.microsoft::MatMulFpQ4 com.microsoft::MatMulInteger16 com.microsoft::MatMulIntegerToFloat com.microsoft::MatMulNBits "
        f"com.microsoft::MaxpoolWithMask com.microsoft::NhwcMaxPool com.microsoft::Pad com.microsoft::SparseToDenseMatMul {_STREAMS} "
        "com.microsoft::TransposeMatMul"
    ),
    No("it is for training", ONNX): _LOSSES,
    No("onnxruntime has no kernel of it yet", "get_all_opkernel_def"): "SwiGLU",
}
"""Why an operator has no rule for cutting (onnxtile/fitting/axis_maps.py)."""

WORK: Mapping[No, str] = {
    _NO_TENSOR: "SequenceMap ai.onnx.ml::CastMap ai.onnx.ml::DictVectorizer ai.onnx.ml::ZipMap",
    _NO_NUMBERS: _TEXTS.replace(" com.microsoft::Tokenizer", ""),
    _DRAWN: _RANDOM,
    No("the work of its bodies is counted, not its own", "onnxtile/inspection/layers.py"): _BODIES,
    No("comparisons decide how many operations it has", ONNX): (
        "NonMaxSuppression NonZero TopK Unique ai.onnx.ml::TreeEnsemble ai.onnx.ml::TreeEnsembleClassifier "
        "ai.onnx.ml::TreeEnsembleRegressor com.microsoft::MoEGroupRouter"
    ),
    _SMALL: (
        "ai.onnx.ml::ArrayFeatureExtractor ai.onnx.ml::Binarizer ai.onnx.ml::FeatureVectorizer ai.onnx.ml::Imputer "
        "ai.onnx.ml::Normalizer ai.onnx.ml::OneHotEncoder ai.onnx.ml::Scaler"
    ),
    _GONE: _REMOVED,
    No("no formula of its operations for each element is written down", ONNX): (
        f"{_WINDOWS} Col2Im Det DynamicQuantizeLinear GridSample MaxRoiPool RoiAlign SwiGLU {_LOSSES}"
    ),
    No("it says that no rule counts it", "onnxtile/inspection/work.py"): (
        "ai.onnx.preview::FlexAttention com.microsoft::AttnLSTM com.microsoft::CDist com.microsoft::CausalConvWithState "
        "com.microsoft::ConvTransposeWithDynamicPads com.microsoft::DecoderMaskedMultiHeadAttention com.microsoft::GatedDeltaNet "
        "com.microsoft::LinearAttention com.microsoft::MatMulFpQ4 com.microsoft::SparseAttention com.microsoft::SparseToDenseMatMul "
        f"com.microsoft::VarlenCausalConvWithState {_STREAMS}"
    ),
}
"""Why no rule counts the work of an operator (onnxtile/inspection/macs)."""

SAVES: Mapping[No, str] = {
    No(
        "the values of its bodies are looked at, not its own", "onnxtile/inspection/training.py"
    ): "If Loop Scan SequenceMap",
    _GONE: f"{_REMOVED} GRUUnit GivenTensorFill",
    No("it is made for another runtime", "onnxruntime's contrib_defs.cc"): (
        "DisentangledAttention_TRT EfficientNMS_TRT MultilevelCropAndResize_TRT PyramidROIAlign_TRT"
    ),
    No("frameworks differ in what they keep; it is listed as unknown", "PyTorch's derivatives.yaml"): (
        "CausalConvWithState MaxRoiPool RoiAlign Unique"
    ),
}
"""Why it is not known what the gradient of a standard operator reads (onnxtile/inspection/training.py)."""

QUANTISED: Mapping[No, str] = {
    No("its scale multiplies floats", ONNX): (
        "BatchNormalization GroupNormalization InstanceNormalization LayerNormalization "
        "RMSNormalization Resize SimplifiedLayerNormalization "
        "Upsample com.microsoft::BranchwiseRMSNorm com.microsoft::EngramGate "
        "com.microsoft::GatedRMSNorm com.microsoft::LinearAttentionGate "
        "com.microsoft::ScaledSiLU"
    ),
    No("its scales are those of the products that follow", ONNX): "ConvInteger MatMulInteger",
    No("scales of its cache are given only to a cache of bytes", CONTRIB): "com.microsoft::GroupQueryAttention",
}
"""Why an operator with operands that are called scales has no quantised tensor (onnxtile/inspection/quantisation.py)."""

CONTRACTION: Mapping[No, str] = {
    _SMALL: "ai.onnx.ml::LinearClassifier ai.onnx.ml::LinearRegressor",
    No("the number of its products depends on its algorithm", "onnxtile/inspection/macs/not_counted.py"): (
        "DFT STFT ai.onnx.ml::SVMClassifier ai.onnx.ml::SVMRegressor"
    ),
    No("its matrix has two or three rows", ONNX): "AffineGrid",
    No("its products depend on each other step by step", ONNX): (
        "CausalConvWithState LinearAttention com.microsoft::DynamicQuantizeLSTM"
    ),
    No("its weights are packed for one kernel", CONTRIB): "com.microsoft::MatMulBnb4 com.microsoft::GemmFloat8",
    No("its experts are chosen in a run", CONTRIB): "com.microsoft::MoE com.microsoft::QMoE",
    No("only the optimiser of onnxruntime writes it", CONTRIB): (
        "com.microsoft.nchwc::Conv com.microsoft::MatMulInteger16 com.microsoft::NhwcFusedConv com.microsoft::TransposeMatMul"
    ),
}
"""Why `tile` neither cuts an operator with products nor says in its report why it does not (onnxtile/tiling)."""

ALL = {"over": OVER, "axes": AXES, "work": WORK, "saves": SAVES, "quantised": QUANTISED, "contraction": CONTRACTION}


def reasons(table: str) -> dict[str, No]:
    """Return the reason of each operator that a table does not have."""
    return {name: no for no, names in ALL[table].items() for name in names.split()}


def doubled(table: str) -> Iterator[str]:
    """Yield the operators that a table has several reasons for."""
    names = [name for names in ALL[table].values() for name in names.split()]
    yield from sorted({name for name in names if names.count(name) > 1})
