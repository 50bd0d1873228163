"""Shapes that depend on the data: sample runs cannot determine them, however many agree."""

from __future__ import annotations

import onnx_ir as ir

from onnxtile.model.walk import nodes_inside

# The size of the output depends on the elements of the input itself.
_COUNTS = {"NonZero", "Compress", "Unique", "NonMaxSuppression", "StringSplit", "TfIdfVectorizer", "ImageDecoder"}
# These inputs say the shape of the output: it depends on the data when their elements do.
_SHAPE_INPUTS = {
    "AffineGrid": (1,),
    "BlackmanWindow": (0,),
    "CenterCropPad": (1,),
    "Col2Im": (1, 2),
    "ConstantOfShape": (0,),
    "DFT": (1, 2),
    "Expand": (1,),
    "HammingWindow": (0,),
    "HannWindow": (0,),
    "If": (0,),
    "Loop": (0, 1),
    "MaxUnpool": (2,),
    "MelWeightMatrix": (0, 1),
    "OneHot": (1,),
    "Pad": (1, 3),
    "Range": (0, 1, 2),
    "Reshape": (1,),
    "Resize": (2, 3),
    "STFT": (1, 3),
    "Slice": (1, 2, 3, 4),
    "Split": (1,),
    "SplitToSequence": (1,),
    "SequenceAt": (1,),
    "SequenceErase": (1,),
    "SequenceInsert": (2,),
    "Squeeze": (1,),
    "Tile": (1,),
    "TopK": (1,),
    "Unsqueeze": (1,),
    "Upsample": (1,),
}
# The same of operators of onnxruntime, where it is not as in ONNX.
_COUNTS_OF_RUNTIME = {
    *("BeamSearch", "BifurcationDetector", "DynamicTimeWarping", "GreedySearch", "RemovePadding", "Sampling"),
    *("Tokenizer", "Unique", "WhisperBeamSearch"),
}
_SHAPE_INPUTS_OF_RUNTIME = {
    "ConvTransposeWithDynamicPads": (2,),
    "CropAndResize": (3,),
    "ExpandDims": (1,),
    "GroupQueryAttention": (6,),
    "Pad": (1,),
    "Range": (0, 1, 2),
    "RelativePositionBias": (1, 2),
}
_FROM_SHAPE = {"Shape", "Size", "SequenceLength"}
_REDUCES = "Reduce"  # ReduceSum and its kind take their axes as input 1


def data_dependent(model: ir.Model) -> dict[ir.Value, ir.Node]:
    """Return the values of the main graph whose shape depends on the elements of its inputs, each with the operator where that begins.

    An operator of an unknown domain is taken to have an output shape that depends on its inputs' shapes alone, a function
    likewise; runs on different samples are what would show otherwise.
    """
    elements = {value: True for value in model.graph.inputs if not value.is_initializer()}
    shapes: dict[ir.Value, ir.Node] = {}
    for node in model.graph:
        cause = _cause(node, elements, shapes)
        if cause is not None:
            shapes.update(dict.fromkeys(node.outputs, cause))
        if node.op_type in _FROM_SHAPE:
            live = cause is not None
        else:
            live = cause is not None or any(value in elements for value in _operands(node))
        if live:
            elements.update(dict.fromkeys(node.outputs, True))
    return shapes


def _operands(node: ir.Node) -> list[ir.Value]:
    """Return the inputs of `node`, with the outer values that its bodies use."""
    operands = [value for value in node.inputs if value is not None]
    operands += (value for inner in nodes_inside(node) for value in inner.inputs if value is not None)
    return operands


def _cause(node: ir.Node, elements: dict[ir.Value, bool], shapes: dict[ir.Value, ir.Node]) -> ir.Node | None:
    for value in _operands(node):
        if value in shapes:
            return shapes[value]
    if any(node.inputs[place] in elements for place in shape_operands(node)):
        return node
    return None


def shape_operands(node: ir.Node) -> list[int]:
    """Return the places of the inputs of `node` on whose elements the shape of its output depends; none for unknown domains."""
    if node.domain not in {"", "ai.onnx", "com.microsoft"}:
        return []
    standard = node.domain != "com.microsoft"
    if node.op_type in (_COUNTS if standard else _COUNTS_OF_RUNTIME):
        return list(range(len(node.inputs)))
    inputs = _SHAPE_INPUTS if standard else _SHAPE_INPUTS_OF_RUNTIME
    places = inputs.get(node.op_type, (1,) if standard and node.op_type.startswith(_REDUCES) else ())
    return [place for place in places if place < len(node.inputs)]
