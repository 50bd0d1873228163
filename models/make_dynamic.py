"""Make two small models with open sizes, on which the examples of the documentation run: attention, and a decoder with a growing cache.

`python models/make_dynamic.py [FOLDER]` writes `dynamic.onnx` and `decoder.onnx` into the folder, this one by default.
"""

from __future__ import annotations

import sys
from pathlib import Path

import onnx
import onnx.parser

DYNAMIC = """
<ir_version: 10, opset_import: ["" : 20]>
attention (float[batch, seq, 8] x) => (float[batch, seq, 8] y) {
  k = Transpose<perm = [0, 2, 1]>(x)
  scores = MatMul(x, k)
  weights = Softmax(scores)
  y = MatMul(weights, x)
}
"""
DECODER = """<ir_version: 10, opset_import: ["": 20]>
decoder (float[1, 2, 1, 8] x, float[1, 2, past, 8] past_key, float[1, 2, past, 8] past_value)
  => (float[1, 2, 1, 8] y, float[1, 2, total, 8] present_key, float[1, 2, total, 8] present_value) {
  present_key = Concat <axis = 2> (past_key, x)
  present_value = Concat <axis = 2> (past_value, x)
  turned = Transpose <perm = [0, 1, 3, 2]> (present_key)
  scores = MatMul(x, turned)
  weights = Softmax(scores)
  y = MatMul(weights, present_value)
}
"""


def main() -> None:
    """Write both models."""
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else ".")
    for name, text in (("dynamic", DYNAMIC), ("decoder", DECODER)):
        onnx.save(onnx.parser.parse_model(text), folder / f"{name}.onnx")


if __name__ == "__main__":
    main()
