"""Operators that draw numbers, make them of sizes, hold bodies, texts or containers, or belong to classical machine learning."""

from __future__ import annotations

from onnxtile.operators import reasons, saves, takes
from onnxtile.operators.node_view import MICROSOFT
from onnxtile.operators.table import (
    ALL_OPERANDS,
    COMPUTED,
    FIRST,
    NO_PRODUCTS,
    NOT_STANDARD,
    NOTHING,
    RISING,
    Family,
    Operator,
    ShapeGrowth,
    each,
    without,
)

_RANDOM = Operator(over=reasons.RANDOM, reads=reasons.RANDOM, work=reasons.RANDOM, saves=saves.stops, draws=True)
_CONTAINER = Operator(over=reasons.CONTAINER, reads=reasons.CONTAINER, work=NOTHING, saves=saves.nothing)
_BODY = Operator(over=reasons.BODY, reads=reasons.BODY, work=reasons.WORK_OF_BODIES, saves=reasons.VALUES_OF_BODIES)
_FEW = Operator(over=reasons.OTHER_SIZE, reads=reasons.FEW_NUMBERS, work=NOTHING, saves=saves.stops)
_BY_DATA = Operator(over=reasons.SIZED_BY_DATA, reads=reasons.SIZED_BY_DATA, work=NO_PRODUCTS, shaped_by=ALL_OPERANDS)

FAMILY = Family(
    "further",
    (
        *without(
            "Affine Crop DynamicSlice ImageScaler MemcpyFromHost MemcpyToHost ParametricSoftplus Scale ScaledTanh",
            reasons.REMOVED,
        ),
        *_RANDOM.rows("Bernoulli", takes={0: takes.between(0, 1)}),
        *_FEW.rows("BlackmanWindow HammingWindow HannWindow", work=reasons.NO_FORMULA, shaped_by=(0,)),
        *_CONTAINER.rows("ConcatFromSequence Optional OptionalGetElement"),
        *_FEW.rows("Constant", over=reasons.NO_KERNEL, reads=reasons.NO_KERNEL),
        *_FEW.rows(
            "ConstantOfShape", shaped_by=(0,), grows=ShapeGrowth(0), numbers=RISING, takes={0: takes.repeated(2)}
        ),
        *without(
            "DisentangledAttention_TRT EfficientNMS_TRT MultilevelCropAndResize_TRT PyramidROIAlign_TRT",
            reasons.NO_KERNEL,
            saves=reasons.OTHER_RUNTIME,
        ),
        *_FEW.rows("EyeLike", over=FIRST),
        *without("GRUUnit GivenTensorFill", reasons.NO_KERNEL, saves=reasons.REMOVED),
        *_BODY.rows("If", shaped_by=(0,)),
        *_BY_DATA.rows(
            "ImageDecoder", over=reasons.NO_KERNEL, reads=reasons.NO_KERNEL, work=reasons.NO_KERNEL, saves=saves.stops
        ),
        *_BODY.rows("Loop", shaped_by=(0, 1), takes={0: takes.always(2), 1: takes.always(1)}),
        *_FEW.rows(
            "MelWeightMatrix",
            work=reasons.NO_FORMULA,
            shaped_by=(0, 1),
            takes={
                0: takes.always(4),
                1: takes.always(16),
                2: takes.always(8000),
                3: takes.always(0),
                4: takes.always(4000),
            },
        ),
        *_RANDOM.rows("Multinomial RandomNormal RandomNormalLike RandomUniform RandomUniformLike"),
        *_CONTAINER.rows(
            "NegativeLogLikelihoodLoss",
            over=reasons.LOSS,
            reads=reasons.TRAINING,
            work=reasons.NO_FORMULA,
            saves=saves.chosen(1),
        ),
        *_BY_DATA.rows(
            "NonMaxSuppression",
            work=reasons.COMPARISONS,
            saves=saves.stops,
            takes={2: takes.always(3), 3: takes.between(0, 1), 4: takes.between(0, 1)},
        ),
        *_BY_DATA.rows("NonZero", work=reasons.COMPARISONS, saves=saves.stops, numbers=COMPUTED),
        *_FEW.rows("OneHot", shaped_by=(1,), grows=ShapeGrowth(1), takes={1: takes.always(4)}),
        *_CONTAINER.rows("OptionalHasElement SequenceEmpty SequenceLength", saves=saves.stops),
        *_FEW.rows(
            "Range",
            work=each(2),
            shaped_by=(0, 1, 2),
            grows=ShapeGrowth(1, step=2),
            numbers=RISING,
            takes={0: takes.always(0), 1: takes.always(5), 2: takes.always(1)},
        ),
        *_FEW.rows(
            "RegexFullMatch StringConcat StringNormalizer", over=reasons.TEXT, reads=reasons.TEXT, work=reasons.TEXT
        ),
        *without("Scan", reasons.BODY, work=reasons.WORK_OF_BODIES, saves=reasons.VALUES_OF_BODIES),
        *_CONTAINER.rows("SequenceAt", shaped_by=(1,)),
        *_CONTAINER.rows("SequenceConstruct", saves=saves.sequence),
        *_CONTAINER.rows("SequenceErase", saves=saves.sequence, shaped_by=(1,)),
        *_CONTAINER.rows("SequenceInsert", saves=saves.sequence, shaped_by=(2,)),
        *without("SequenceMap", reasons.CONTAINER, saves=reasons.VALUES_OF_BODIES),
        *_FEW.rows("Shape Size"),
        *_CONTAINER.rows(
            "SoftmaxCrossEntropyLoss",
            over=reasons.LOSS,
            reads=reasons.TRAINING,
            work=reasons.NO_FORMULA,
            saves=saves.operands,
        ),
        *_CONTAINER.rows("SplitToSequence", saves=saves.sequence, shaped_by=(1,), takes={1: takes.even_parts}),
        *_BY_DATA.rows(
            "StringSplit TfIdfVectorizer", over=reasons.TEXT, reads=reasons.TEXT, work=reasons.TEXT, saves=saves.stops
        ),
        *_BY_DATA.rows("Unique", work=reasons.COMPARISONS, saves=reasons.FRAMEWORKS_DIFFER),
        *without(
            "ArrayFeatureExtractor Binarizer FeatureVectorizer Imputer Normalizer OneHotEncoder Scaler",
            reasons.CLASSICAL,
            domain="ai.onnx.ml",
        ),
        *without("CastMap DictVectorizer ZipMap", reasons.CONTAINER, domain="ai.onnx.ml"),
        *without("CategoryMapper LabelEncoder", reasons.TEXT, domain="ai.onnx.ml"),
        *without(
            "TreeEnsemble TreeEnsembleClassifier TreeEnsembleRegressor",
            reasons.CLASSICAL,
            domain="ai.onnx.ml",
            work=reasons.COMPARISONS,
        ),
        *without("Adagrad Adam Gradient Momentum", reasons.NO_KERNEL, domain="ai.onnx.preview.training"),
        *_BODY.rows(
            "BeamSearch GreedySearch WhisperBeamSearch", domain=MICROSOFT, shaped_by=ALL_OPERANDS, saves=NOT_STANDARD
        ),
        *_BY_DATA.rows("BifurcationDetector DynamicTimeWarping Unique", domain=MICROSOFT),
        *without(
            (
                "ComplexMul ComplexMulConj ConvStateReplay DecoderAttention DecoderMaskedSelfAttention DequantizeBFP "
                "DequantizeWithOrder DynamicSparseAttention EPContext FusedMatMulActivation GatedDeltaNetStateReplay "
                "GatedRelativePositionBias GemmFastGelu GemmaRotaryEmbedding HyperConnectionLowRankMix Irfft IsAllFinite "
                "LongformerAttention Mamba2Verify MatMulBlockQuantizedFp4Weight MatMulBlockQuantizedFp8Weight MatMulNBitsMlp "
                "MatMulNBitsQLoRA MatMulNBitsQkv MatMulPacked MoEPacked MulInteger NhwcConv PackedAttention "
                "PackedMultiHeadAttention PackedSparseAttentionIndexer PackedSparseAttentionIndexerMerge PagedAttention "
                "QOrderedAttention QOrderedGelu QOrderedLayerNormalization QOrderedLongformerAttention QOrderedMatMul "
                "QuantizeBFP QuantizeWithOrder RMSNormRotary ReduceSumInteger RestorePadding Rfft RouterGateUpProj Snpe "
                "SparseAttentionIndexer SparsePagedAttention SpeculativePrefixCommit SwiGLU TorchEmbedding"
            ),
            reasons.NO_KERNEL,
            domain=MICROSOFT,
        ),
        *_FEW.rows(
            "Range",
            domain=MICROSOFT,
            work=NO_PRODUCTS,
            shaped_by=(0, 1, 2),
            takes={0: takes.always(0), 1: takes.always(5), 2: takes.always(1)},
            saves=NOT_STANDARD,
        ),
        *_BY_DATA.rows(
            "RelativePositionBias",
            domain=MICROSOFT,
            over=reasons.NO_KERNEL,
            reads=reasons.NO_KERNEL,
            work=reasons.NO_KERNEL,
            shaped_by=(1, 2),
        ),
        *_BY_DATA.rows(
            "RemovePadding", domain=MICROSOFT, over=reasons.NO_KERNEL, reads=reasons.NO_KERNEL, work=reasons.NO_KERNEL
        ),
        *_RANDOM.rows("Sampling", domain=MICROSOFT, shaped_by=ALL_OPERANDS, saves=NOT_STANDARD),
        *_BY_DATA.rows("Tokenizer", domain=MICROSOFT, over=reasons.TEXT, reads=reasons.TEXT),
        *without("WordConvEmbedding", reasons.TEXT, domain=MICROSOFT),
    ),
)
