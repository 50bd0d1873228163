"""Writes a model in C by Deeploy's flow for any processor. Run by a Python that has Deeploy and its dependencies, in a checkout of it.

    python deeploy_side.py MODEL.onnx OUT.c

Its parsers want each attribute, so those at their defaults are written out before. The last line of an error says why it refuses a model.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import onnx
import onnx_graphsurgeon
from Deeploy.AbstractDataTypes import PointerClass
from Deeploy.CommonExtensions.DataTypes import float32_t, int8_t, int32_t, uint8_t
from Deeploy.Targets.CortexM.Platform import CMSISMapping
from Deeploy.Targets.Generic.Deployer import GenericDeployer
from Deeploy.Targets.Generic.Platform import GenericMapping, GenericOptimizer, GenericPlatform

_DEFAULTS: dict[str, dict[str, object]] = {
    "Gemm": {"alpha": 1.0, "beta": 1.0, "transA": 0, "transB": 0},
    "Flatten": {"axis": 1},
    "Softmax": {"axis": -1},
}


def main() -> None:
    """Write the program, or end with the operators that the flow lacks."""
    model = onnx.shape_inference.infer_shapes(onnx.load(sys.argv[1]))
    operators = {node.op_type for node in model.graph.node}
    lacking = [sorted(operators - set(known)) for known in (GenericMapping, CMSISMapping)]
    if lacking[0]:
        sys.exit(f"it lacks {', '.join(lacking[0])}; its flow for Cortex-M lacks {', '.join(lacking[1]) or 'none'}")
    _write_defaults(model)
    graph = onnx_graphsurgeon.import_onnx(model)
    types = {1: float32_t, 3: int8_t, 2: uint8_t, 6: int32_t}
    ports = {f"input_{place}": info.type.tensor_type.elem_type for place, info in enumerate(model.graph.input)}
    for kind, tensors in (("input", graph.inputs), ("output", graph.outputs)):
        for place, tensor in enumerate(tensors):
            tensor.name = f"{kind}_{place}"
    with tempfile.TemporaryDirectory() as folder:
        deployer = GenericDeployer(
            graph,
            GenericPlatform(),
            {name: PointerClass(types[dtype]) for name, dtype in ports.items()},
            GenericOptimizer,
            scheduler=lambda given: given.nodes,
            deeployStateDir=folder,
            inputOffsets=dict.fromkeys(ports, 0),
        )
        deployer.generateFunction()
    text = [
        "#include <stdlib.h>\n#define deeploy_malloc malloc\n#define deeploy_free free",
        deployer.generateIncludeString(),
        deployer.generateBufferInitializationCode(),
        deployer.generateGlobalDefinitionCode(),
        f"void net_run(void) {{\n{deployer.generateInferenceInitializationCode()}\n{deployer.generateInferenceCode()}\n}}",
        f"void net_init(void) {{\n{deployer.generateEngineInitializationCode()}\n{deployer.generateBufferAllocationCode()}\n}}",
    ]
    Path(sys.argv[2]).write_text("\n".join(text), "utf-8")


def _write_defaults(model: onnx.ModelProto) -> None:
    weights = {tensor.name: list(tensor.dims)[2:] for tensor in model.graph.initializer}
    for node in model.graph.node:
        implied = dict(_DEFAULTS.get(node.op_type, {}))
        if node.op_type == "Conv":
            kernel = weights[node.input[1]]
            ones = [1] * len(kernel)
            implied = {
                "kernel_shape": kernel,
                "dilations": ones,
                "strides": ones,
                "pads": [0, 0] * len(kernel),
                "group": 1,
            }
        held = {attribute.name for attribute in node.attribute}
        node.attribute.extend(
            onnx.helper.make_attribute(name, value) for name, value in implied.items() if name not in held
        )


if __name__ == "__main__":
    main()
