"""The certificate of a plan whose arena has no bytes."""

from __future__ import annotations

import onnx

import onnxtile

MODEL = """<ir_version: 10, opset_import: ["" : 20]>
g (float[8] x) => (float[8] y) { y = Relu(x) }"""


def test_a_plan_without_bytes_has_a_certificate_without_a_proof() -> None:
    said = onnxtile.plan(onnx.parser.parse_model(MODEL), io="outside", verify=False).certificate()
    assert (said["arena"], said["proof"]) == (0, None)
    assert said["reason"] == "the arena has no bytes, so no plan has fewer"
