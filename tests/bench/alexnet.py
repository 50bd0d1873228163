"""AlexNet with weights of real size, 61 million parameters (244 MB), at random: `python -m tests.bench.alexnet FILE`.

The graph is that of onnx's light_bvlc_alexnet, whose weights are ConstantOfShape nodes; here they are initializers, all different.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import onnx
from onnx import numpy_helper

LIGHT = Path(onnx.__file__).parent / "backend/test/data/light/light_bvlc_alexnet.onnx"


def make(path: Path) -> int:
    """Write the model to `path`; return the bytes of its weights."""
    model = onnx.load(LIGHT)
    graph, random = model.graph, np.random.default_rng(0)
    sizes = {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer}
    made = {node.output[0]: sizes[node.input[0]] for node in graph.node if node.op_type == "ConstantOfShape"}
    kept = [node for node in graph.node if node.op_type != "ConstantOfShape"]
    read = {name for node in kept for name in node.input}
    weights = []
    for name, shape in made.items():
        scale = 1 / np.sqrt(np.prod(shape[1:], initial=1))
        weights.append(numpy_helper.from_array((random.standard_normal(shape) * scale).astype(np.float32), name))
    others = [tensor for tensor in graph.initializer if tensor.name in read]
    inputs = [value for value in graph.input if value.name in read and value.name not in sizes]
    made_of = onnx.helper.make_graph(kept, graph.name, inputs, graph.output, [*others, *weights])
    model = onnx.helper.make_model(made_of, opset_imports=model.opset_import, ir_version=max(model.ir_version, 8))
    onnx.checker.check_model(model)
    onnx.save(model, path)
    return sum(len(tensor.raw_data) for tensor in weights)


if __name__ == "__main__":
    print(f"{make(Path(sys.argv[1])):,} bytes of weights")
