"""Every pattern says why it did not match, on real models, as text and as JSON."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from onnxtile import api
from onnxtile.query.program import Check
from onnxtile.report.tables import for_explain
from tests.conftest import ZOO
from tests.patterns.conftest import LIBRARY

if TYPE_CHECKING:
    from tests.patterns.conftest import Tiny

QUICK = [("t5_encoder_ts14", "RMSNorm"), ("clip_text_dy20", "GeLU"), ("bert-sdpa_ts14", "MultiHeadAttention")]
WHOLE = [(path.stem, name) for path in sorted(ZOO.glob("*_ts14*.onnx")) for name in LIBRARY]


@pytest.mark.parametrize(
    ("model", "name"), [*QUICK, *(pytest.param(*pair, marks=pytest.mark.slow) for pair in WHOLE if pair not in QUICK)]
)
def test_each_attempt_has_its_place_and_its_reason(zoo: Callable[[str], Path], model: str, name: str) -> None:
    path = zoo(model)
    explanation = api.explain(path, name)
    said = json.loads(json.dumps(explanation.to_dict()))
    assert for_explain(said)
    for attempt in said["attempts"]:
        first, last = attempt["span"]
        assert first < last
        assert attempt["reason"]
        program = LIBRARY[name].programs[attempt["variant"] - 1]
        conditions = [one.text for one in program.instructions if isinstance(one, Check)]
        assert attempt["clause"] in program.query.text or attempt["clause"] in conditions
    lengths = [len(attempt["nodes"]) for attempt in said["attempts"]]
    assert lengths == sorted(lengths, reverse=True)


def test_what_is_inside_a_meta_op_is_not_explained(tiny: Tiny) -> None:
    model = tiny.model("s = Sigmoid(x)\ng = Mul(x, s)\nt = Sigmoid(g)\ny = Mul(x, t)")
    explanation = api.explain(model, "SiLU")
    assert explanation.fused == 1
    assert {attempt.stopped.root for attempt in explanation.attempts} == {"t", "y"}
    assert "'sigmoid.inputs[0] in gate.inputs' does not hold" in explanation.attempts[0].stopped.reason


def test_weights_that_two_products_read_are_the_reason(tiny: Tiny) -> None:
    body = "r = MatMul(q, k)\nw = Softmax<axis=-1>(r)\na = MatMul(w, u)\nb = MatMul(w, v)\ny = Add(a, b)"
    explanation = api.explain(tiny.model(body, shape="2,8,8"), "ScaledDotProductAttention")
    best = explanation.attempts[0].stopped
    assert (best.node, best.nodes) == ("w", ("r", "w"))
    assert "'w' is read by MatMul" in best.reason
    assert any("read outside" in refused.reason for refused in explanation.refused)
