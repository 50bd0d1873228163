"""What a model has that is odd, and goes: one line on stderr, once, in every command that reads it."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import pytest

Run = Callable[..., Any]

COMMANDS = (
    ("inspect",), ("plan", "--dry-run"), ("tile", "--max", "2", "--dry-run"), ("fuse", "--dry-run"), ("match", "MatMul"),
)  # fmt: skip

WRONG_RANK = """
<ir_version: 8, opset_import: ["": 17]>
g (float[4,3] x) => (float[rows,columns] y) <float[3,5] w = {1,2,3,4,5,6,7,8,9,1,2,3,4,5,6}, int64[3] s = {4,1,5}> {
  a = MatMul(x, w)
  b = Reshape(a, s)
  y = Relu(b)
}
"""

NOT_OF_THE_OPSET = """
<ir_version: 8, opset_import: ["": 14]>
g (float[4,3] x) => (float[rows,columns] y) <float[3,5] w = {1,2,3,4,5,6,7,8,9,1,2,3,4,5,6}, float[5] s = {1,2,3,4,5}> {
  a = MatMul(x, w)
  y = LayerNormalization <axis = -1> (a, s)
}
"""

NO_SUCH_ATTRIBUTE = """
<ir_version: 8, opset_import: ["": 14]>
g (float[4,3] x) => (float[rows,columns] y) { y = Relu <axis = -1> (x) }
"""


@pytest.mark.parametrize("arguments", [("inspect",), ("plan", "--dry-run")])
def test_a_shape_that_is_declared_wrongly(run: Run, tmp_path: Path, arguments: tuple[str, ...]) -> None:
    onnx.save(onnx.parser.parse_model(WRONG_RANK), tmp_path / "m.onnx")
    done = run(arguments[0], "m.onnx", *arguments[1:])
    assert done.code == 0
    assert done.err == "warning: the model declares the output 'y' as [rows, columns], and it is [4, 1, 5]\n"
    assert run(arguments[0], "m.onnx", *arguments[1:], "--quiet").err == ""


@pytest.mark.parametrize("arguments", COMMANDS, ids=lambda arguments: arguments[0])
def test_an_operator_that_the_opset_lacks_and_the_runtime_has(
    run: Run, tmp_path: Path, arguments: tuple[str, ...]
) -> None:
    onnx.save(onnx.parser.parse_model(NOT_OF_THE_OPSET), tmp_path / "m.onnx")
    done = run(arguments[0], "m.onnx", *arguments[1:])
    assert done.code == 0
    assert done.err == "warning: ONNX has no operator LayerNormalization in opset 14; onnxruntime takes it\n"


def test_initializers_of_an_old_model_that_are_no_inputs(run: Run, tmp_path: Path) -> None:
    old = onnx.parser.parse_model(WRONG_RANK.replace("rows,columns", "rows,one,columns"))
    old.ir_version = 3
    onnx.save(old, tmp_path / "m.onnx")
    done = run("plan", "m.onnx", "--dry-run")
    assert done.code == 0
    assert done.err == "warning: IR version 3 wants every initializer among the inputs; onnxruntime does not\n"


def test_what_the_runtime_refuses_too_is_an_error(run: Run, tmp_path: Path) -> None:
    onnx.save(onnx.parser.parse_model(NO_SUCH_ATTRIBUTE), tmp_path / "m.onnx")
    done = run("inspect", "m.onnx")
    assert done.code == 2
    assert done.err == "error: m.onnx: the model is not valid ONNX: Unrecognized attribute: axis for operator Relu\n"
