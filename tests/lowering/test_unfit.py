"""A site that an operator does not fit stays a call with its reason; it never ends the command."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest

from onnxtile import api
from onnxtile.fusion.lower.lowering import CallSite, Lowering, Replacement
from onnxtile.fusion.lowerings.activations import SILU
from onnxtile.system.errors import Mismatch
from onnxtile.verbs.flows.results import FuseResult

SHAPE = "[1,2,4,8]"
SCORES = "t = Transpose <perm=[0,1,3,2]> (x) p = MatMul (x, t) s = Mul (p, scale)"


def attention(bench: Any, scale: float, mask: np.ndarray[Any, Any] | None = None) -> onnx.ModelProto:
    body, constants = SCORES, dict[str, object](scale=scale)
    if mask is not None:
        body, constants = f"{body} m = Add (s, mask)", {"scale": scale, "mask": mask}
    body += f" w = Softmax <axis=-1> ({'s' if mask is None else 'm'}) y = MatMul (w, x)"
    model: onnx.ModelProto = bench.model(body, constants, x=f"float{SHAPE}", y=f"float{SHAPE}")
    return model


def require_call(result: FuseResult, reason: str) -> None:
    """Assert that the only site stayed a call for a reason, and that the model was verified."""
    assert [site.operator for site in result.lowered] == [""]
    assert reason in result.lowered[0].reason
    assert [node.domain for node in result.model.graph if node.op_type != "Transpose"] == ["onnxtile"]
    assert result.verdict is not None and result.verdict.equal


@pytest.mark.parametrize("target", ["onnx", "ort", "qdq"])
def test_a_negative_scale(bench: Any, target: str) -> None:
    result = bench.lower(attention(bench, -0.35), "ScaledDotProductAttention", target)
    if target == "onnx":
        require_call(result, "its scale is -0.35")
    assert result.verdict is not None and result.verdict.equal
    assert bool(result.lowered[0].operator) != bool(result.lowered[0].reason)


@pytest.mark.parametrize("target", ["onnx", "ort", "qdq"])
def test_a_row_that_the_mask_hides_never_ends_the_command(bench: Any, target: str) -> None:
    mask = np.zeros((4, 4))
    mask[1] = -np.inf
    result = bench.lower(attention(bench, 0.35, mask), "ScaledDotProductAttention", target)
    assert result.verdict is not None and result.verdict.equal
    assert bool(result.lowered[0].operator) != bool(result.lowered[0].reason)


def test_a_row_that_the_mask_hides(bench: Any) -> None:
    mask = np.zeros((4, 4))
    mask[1] = -np.inf
    require_call(bench.lower(attention(bench, 0.35, mask), "ScaledDotProductAttention"), "hides whole rows")
    mask[1, 0] = 0.0
    assert bench.lower(attention(bench, 0.35, mask), "ScaledDotProductAttention").lowered[0].operator == "Attention"


@pytest.mark.parametrize("target", ["onnx", "ort"])
def test_an_element_type_without_a_kernel(target: str) -> None:
    text = """<ir_version: 10, opset_import: ["": 17]> g (double[2,8] x) => (double[2,8] y)
      <double three = {3.0}, double zero = {0.0}, double six = {6.0}>
      { a = Add (x, three) c = Clip (a, zero, six) m = Mul (x, c) y = Div (m, six) }"""
    result = api.fuse(onnx.parser.parse_model(text), ["HardSwish"], lower=target)
    require_call(result, "HardSwish does not take the element type double")


class Wrong(Lowering):
    """A lowering that does not prove enough: what it writes is another function, or an operator that onnxruntime refuses."""

    name = "SiLU"

    def __init__(self, operator: str) -> None:
        self.operator = operator

    def to_onnx(self, site: CallSite) -> Replacement:
        right = SILU.to_ort(site)
        return Replacement.one(self.operator, right.steps[0].inputs, since=1)


def only(lowering: Lowering) -> Callable[..., dict[str, Lowering]]:
    """Return a stand-in for `discover` that finds one lowering of calls."""
    return lambda package, *_: {lowering.name: lowering} if package.endswith(".lowerings") else {}


@pytest.mark.parametrize(
    ("operator", "reason"),
    [("Softsign", "run alone, the operator is off by"), ("Det", "onnxruntime refuses the operator")],
)
def test_a_site_that_fails_alone_stays_a_call(
    bench: Any, monkeypatch: pytest.MonkeyPatch, operator: str, reason: str
) -> None:
    """Both sites are of one kind, of which one is run: both stay."""
    monkeypatch.setattr("onnxtile.fusion.lower.driver.discover", only(Wrong(operator)))
    body = "s = Sigmoid (x) a = Mul (x, s) t = Sigmoid (a) y = Mul (a, t)"
    result = bench.lower(bench.model(body, {}), "SiLU")
    assert [site.operator for site in result.lowered] == ["", ""]
    assert all(reason in site.reason for site in result.lowered)
    assert [node.op_type for node in result.model.graph] == ["SiLU", "SiLU"]
    assert result.verdict is not None and result.verdict.equal


def test_without_verification_nothing_is_run(bench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("onnxtile.fusion.lower.driver.discover", only(Wrong("Softsign")))
    model = bench.model("s = Sigmoid (x) y = Mul (x, s)", {})
    assert bench.lower(model, "SiLU", verify=False).lowered[0].operator == "Softsign"


def test_a_fused_model_that_differs_is_still_refused(bench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only sites are given up: where every site agrees and the whole does not, the model is not written."""
    monkeypatch.setattr("onnxtile.fusion.lower.driver.discover", only(Wrong("Softsign")))
    monkeypatch.setattr("onnxtile.verbs.flows.lower._why_unfit", lambda *_: "")
    monkeypatch.setattr("onnxtile.verbs.flows.fuse.require_sites", lambda *_: None)
    with pytest.raises(Mismatch, match="lowered model"):
        bench.lower(bench.model("s = Sigmoid (x) y = Mul (x, s)", {}), "SiLU")
