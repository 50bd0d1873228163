"""The reasons why operators lack cells of their rows, each with its source."""

from __future__ import annotations

from onnxtile.operators.table import No

_ONNX, _CONTRIB = "https://onnx.ai/onnx/operators/", "onnxruntime's docs/ContribOperators.md"
_RUN = "tests/operators/test_evidence.py runs it over each operand of its result's size"

# Why an operator lacks most cells.
CONTAINER = No("a sequence, an optional or a map has no fixed bytes", _ONNX)
TEXT = No("texts have no fixed bytes, and what is made of texts is a small table", _ONNX)
RANDOM = No("its numbers are drawn anew in each run: no comparison of two runs shows what it reads", _ONNX)
BODY = No("what it reads and writes is what its bodies do: each has a plan of its own", "docs/plan.md")
CLASSICAL = No("classical machine learning reads a row of features, of a few bytes", _ONNX)
REMOVED = No("ONNX removed it before version 1.6; only onnxruntime still takes it", "onnxruntime's contrib_defs.cc")
SIZED_BY_DATA = No("the number of elements of its result depends on the data", "onnxtile/shapes/bodies.py")
TRAINING = No("it is for training", _ONNX)
NO_KERNEL = No("onnxruntime has no kernel of it for a CPU", "get_all_opkernel_def")
OTHER_RUNTIME = No("it is made for another runtime", "onnxruntime's contrib_defs.cc")
OPTIMISED = No("onnxruntime writes it when it optimises a model: plan the model before that", _CONTRIB)

# Why no result may be written over an operand.
OTHER_SIZE = No("its result has other sizes than any operand, or no operand has elements", _ONNX)
SUM = No("an element of a product is a sum over elements that others are sums over, too", _RUN)
ALL_ROWS = No("a row of its result is made of all rows, or of a state that it keeps", _ONNX)
WINDOW = No("a window reads neighbours that are written already", _RUN)
MOVED = No("it moves elements to other places, or takes some of them", _RUN)
SMALLER = No("its result is smaller than its operand, but for axes of one element", _ONNX)
READ_AGAIN = No("its kernel reads elements that it has overwritten, at least on processors without AVX-512", _RUN)
HALF_ROW = No(
    "a kernel without vectors reads the other half of a row after it has written it", "mlas/lib/rotary_embedding.cpp"
)
LOSS = No("it is for training; it has a second result that is as large as the operand", _ONNX)

# Why no axis of a result is cut.
FEW_NUMBERS = No("its result is made of sizes, or of few numbers", _ONNX)
POSITION = No("a part would have to know where it lies in the whole", _ONNX)
ANY_ELEMENT = No("each element may read or update any element of an operand", _ONNX)
WHOLE_SCALE = No("its scale is that of the whole operand", _ONNX)
WHOLE_AXES = No("a transform or a factorisation reads the whole of its axes", _ONNX)
LOWERED = No("fuse without --lower leaves products of matrices, which are cut", "docs/fit.md")
STEPS = No("its steps depend on each other", _ONNX)

# Why no rule counts the work.
WORK_OF_BODIES = No("the work of its bodies is counted, not its own", "onnxtile/inspection/layers.py")
COMPARISONS = No("comparisons decide how many operations it has", _ONNX)
NO_FORMULA = No("no formula of its operations for each element is written down", _ONNX)
NOT_COUNTED = No("it says that no rule counts it", "onnxtile/operators/table.py")

# Why it is not known what a gradient reads.
VALUES_OF_BODIES = No("the values of its bodies are looked at, not its own", "onnxtile/inspection/training.py")
FRAMEWORKS_DIFFER = No("frameworks differ in what they keep; it is listed as unknown", "PyTorch's derivatives.yaml")

# Why an operand that is called a scale belongs to no quantised tensor.
FLOAT_SCALE = No("its scale multiplies floats", _ONNX)
CACHE_SCALE = No("scales of its cache are given only to a cache of bytes", _CONTRIB)

# Why `tile` neither cuts an operator with products nor says in its report why it does not.
OWN_ALGORITHM = No("the number of its products depends on its algorithm", "onnxtile/operators/families/products.py")
NARROW = No("its matrix has two or three rows", _ONNX)
STEP_BY_STEP = No("its products depend on each other step by step", _ONNX)
PACKED = No("its weights are packed for one kernel", _CONTRIB)
ROUTED = No("its experts are chosen in a run", _CONTRIB)
WRITTEN_BY_OPTIMISER = No("only the optimiser of onnxruntime writes it", _CONTRIB)
