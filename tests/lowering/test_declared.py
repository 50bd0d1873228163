"""Lowerings that a pattern file declares: checked against the operator's schema when it is read, and against the site when it is run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from onnxtile.fusion.pattern import from_file
from onnxtile.system.errors import Mismatch, PatternError
from onnxtile.verbs.flows.results import FuseResult

Names = Callable[[FuseResult], list[str]]

HEAD = """name = "Gate"
doc = "x times the sigmoid of x"
[[variants]]
query = "Sigmoid#s-*>Mul#m"
where = ["s.inputs[0] in m.inputs"]
"""
BODY = "g = Sigmoid(x) y = Mul(x, g)"


def written(folder: Path, lower: str) -> str:
    file = folder / "gate.toml"
    file.write_text(HEAD + lower)
    return str(file)


@pytest.mark.parametrize(
    ("lower", "target", "operator"),
    [
        ("[lower.onnx]\nop = 'Swish'\nattributes = { alpha = 1.0 }\n", "onnx", "Swish"),
        ("[lower.onnx]\nop = 'Swish'\n", "ort", "Swish"),
        (
            "[lower.ort]\nop = 'QuickGelu'\ndomain = 'com.microsoft'\nattributes = { alpha = 1.0 }\n",
            "ort",
            "com.microsoft.QuickGelu",
        ),
    ],
)
def test_a_declared_operator_is_written(
    bench: Any, operators: Names, tmp_path: Path, lower: str, target: str, operator: str
) -> None:
    result = bench.lower(bench.model(BODY, {}), written(tmp_path, lower), target)
    assert operators(result) == [operator]
    assert result.verdict is not None and result.verdict.equal
    assert [site.decided for site in result.lowered] == ["by a run"]
    unrun = bench.lower(bench.model(BODY, {}), written(tmp_path, lower), target, verify=False)
    assert [site.decided for site in unrun.lowered] == ["by a run, which was left out"]


def test_what_is_not_declared_stays_a_call(bench: Any, reasons: Names, tmp_path: Path) -> None:
    lower = "[lower.ort]\nop = 'QuickGelu'\ndomain = 'com.microsoft'\n"
    assert reasons(bench.lower(bench.model(BODY, {}), written(tmp_path, lower))) == [
        "its pattern declares no [lower.onnx]"
    ]


def test_a_claim_that_is_wrong_is_found_out(bench: Any, tmp_path: Path) -> None:
    lower = "[lower.ort]\nop = 'QuickGelu'\ndomain = 'com.microsoft'\nattributes = { alpha = 1.5 }\n"
    with pytest.raises(Mismatch):
        bench.lower(bench.model(BODY, {}), written(tmp_path, lower), "ort")


def test_an_element_type_that_the_operator_does_not_take(bench: Any, reasons: Names, tmp_path: Path) -> None:
    lower = "[lower.onnx]\nop = 'BitwiseNot'\n"
    reason = "BitwiseNot does not take the element type float"
    assert reasons(bench.lower(bench.model(BODY, {}), written(tmp_path, lower))) == [reason]


AT_FAULT = [
    ("[lower.onnx]\nop = 'Swosh'\n", 7, "unknown operator Swosh"),
    ("[lower.onnx]\nop = 'Swish'\nsince = 20\n", 7, "unknown operator Swish in opset 20"),
    ("[lower.ort]\nop = 'QuickSand'\ndomain = 'com.microsoft'\n", 7, "unknown operator com.microsoft.QuickSand"),
    ("[lower.onnx]\nop = 'Swish'\ninputs = [0, 1]\n", 8, "Swish takes 1 inputs, not 2"),
    ("[lower.onnx]\nop = 'Swish'\ninputs = [-1]\n", 8, "counted from 0"),
    ("[lower.onnx]\nop = 'Swish'\n[lower.onnx.attributes]\nbeta = 1.0\n", 9, "Swish has no attribute 'beta'"),
    ("[lower.onnx]\nop = 'Swish'\n[lower.onnx.attributes]\nalpha = 1\n", 9, "is of type float, not 1"),
    ("[lower.onnx]\nop = 'Softmax'\n[lower.onnx.attributes]\naxis = 'x'\n", 9, "is of type int, not 'x'"),
    ("[lower.onnx]\nop = 'GroupNormalization'\ninputs = [0, 1, 2]\n", 6, "needs the attribute 'num_groups'"),
    ("[lower.onnx]\nop = 'TopK'\ninputs = [0, 1]\n", 7, "TopK has 2 outputs, the meta-op 1"),
    ("[lower.onnx]\nop = 'Swish'\nspeed = 3\n", 8, "unknown key 'lower.onnx.speed'"),
    ("[lower.tensorrt]\nop = 'Swish'\n", 6, "tensorrt"),
    ("[lower.onnx]\nop = 3\n", 7, "op"),
]


@pytest.mark.parametrize(("lower", "line", "message"), AT_FAULT)
def test_a_lowering_that_does_not_fit_its_operator(tmp_path: Path, lower: str, line: int, message: str) -> None:
    file = written(tmp_path, lower)
    with pytest.raises(PatternError) as caught:
        from_file(Path(file))
    assert str(caught.value).startswith(f"{file}:{line}: ")
    assert message in str(caught.value)
