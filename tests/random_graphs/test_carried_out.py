"""The oracle of plans refuses a result over an operand that the operator may still read, and no other."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest

from tests.random_graphs.carried_out import Corrupted, Run
from tests.random_graphs.kernels import Kernels, run_model

MODEL = """<ir_version: 10, opset_import: ["" : 24]>
g (float[8] x, float[8] s) => (float[8] z) { a = Relu(x) b = Relu(s) y = RMSNormalization(a, b) z = Exp(y) }"""
TWICE = MODEL.replace("RMSNormalization(a, b)", "RMSNormalization(a, a)")
LAYER = MODEL.replace("RMSNorm", "LayerNorm")
FEEDS = {"x": np.arange(1, 9, dtype=np.float32), "s": np.arange(2, 10, dtype=np.float32)}


def outputs(text: str, over: str) -> dict[str, Any]:
    """Return the outputs of a plan that puts `y` over the tensor `over`."""
    at = {"a": 0, "b": 32, "z": 64}
    at["y"] = at[over]
    model = onnx.parser.parse_model(text)
    plan = {
        "arenas": [{"name": "arena", "size": 96}],
        "schedule": [node.output[0] for node in model.graph.node],
        "results": [list(node.output) for node in model.graph.node],
        "steps": [0, 1, 2, 3],
        "buffers": [
            {
                "name": name,
                "arena": "arena",
                "offset": offset,
                "size": 32,
                "kind": "activation",
                "alias": over if name == "y" else None,
            }
            for name, offset in at.items()
        ],
        "constants": [],
        "outside": [],
        "unplanned": [],
        "bodies": [],
    }
    return Run(model, plan, Kernels(model)).outputs(FEEDS)


def test_a_normalisation_may_write_over_its_first_operand() -> None:
    expected = run_model(onnx.parser.parse_model(MODEL), FEEDS)
    assert np.array_equal(outputs(MODEL, "a")["z"], expected["z"])


@pytest.mark.parametrize(("text", "over"), [(MODEL, "b"), (TWICE, "a"), (LAYER, "b")])
def test_a_normalisation_may_not_write_over_its_scale(text: str, over: str) -> None:
    with pytest.raises(Corrupted, match="written over its operand"):
        outputs(text, over)


def test_a_copy_of_four_bits_is_carried_out() -> None:
    """onnxruntime has no kernel for Identity of int4, which is the body of a copy."""
    model = onnx.parser.parse_model("""<ir_version: 10, opset_import: ["": 22, "own": 1]>
        g (int4[2, 2] x) => (int4[2, 2] y) { y = own.Copy(x) }
        <domain: "own", opset_import: ["": 22]> Copy (a) => (b) { b = Identity(a) }""")
    array = np.asarray([[1, -2], [3, 7]]).astype(onnx.helper.tensor_dtype_to_np_dtype(onnx.TensorProto.INT4))
    (copy,) = Kernels(model).run(model.graph.node[0], {"x": array})
    assert copy is not None and copy.dtype == array.dtype and np.array_equal(copy, array)
