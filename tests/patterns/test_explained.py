"""Every pattern says why it did not match, on real models, as text and as JSON."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from rich.table import Table
from rich.text import Text

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


def test_every_match_is_accounted_for(rapidocr: Callable[[str], Path]) -> None:
    """Six matches and two calls leave four: each is the same nodes as one that was fused, read in another way."""
    explanation = api.explain(rapidocr("ch_PP-OCRv4_rec_infer"), "MultiHeadAttention")
    fates = [match.fate for match in explanation.matches]
    assert fates.count("fused") == explanation.fused == 2
    assert fates.count("overlapped") == len(fates) - 2 == 4
    calls = {match.detail for match in explanation.matches if match.fate == "fused"}
    for match in explanation.matches:
        if match.fate == "overlapped":
            assert "has the same nodes" in match.detail and any(repr(call) in match.detail for call in calls)
    shown = str([part.plain for part in for_explain(explanation.to_dict()) if isinstance(part, Text)])
    assert "6 matches, 2 fused, 4 overlapped" in shown


@pytest.mark.parametrize(
    ("body", "query", "fates"),
    [
        ("a = Relu(x)\nb = Relu(a)\ny = Relu(b)", "Relu->Relu", ["fused", "overlapped"]),
        ("a = Relu(x)\nb = Exp(a)\nc = Mul(a, b)\ny = Exp(c)", "Relu~>Mul", ["refused"]),
        ("a = Relu(x)\nb = Exp(a)\nc = Exp(a)\ny = Add(b, c)", "Relu~>Exp", ["fused", "overlapped"]),
    ],
)
def test_each_match_has_one_fate(tiny: Tiny, body: str, query: str, fates: list[str]) -> None:
    model = tiny.model(body)
    explanation = api.explain(model, query)
    assert sorted(match.fate for match in explanation.matches) == sorted(fates)
    assert len(explanation.matches) == len(api.match(model, query).matches)
    assert all(match.detail for match in explanation.matches)


def test_an_earlier_pattern_is_named_where_it_took_a_node(tiny: Tiny, tmp_path: Path) -> None:
    for name, query in (("First", "Exp->Relu"), ("Second", "Relu->Tanh")):
        (tmp_path / f"{name}.toml").write_text(f'name = "{name}"\ndoc = "x"\n[[variants]]\nquery = "{query}"\n')
    files = [str(tmp_path / "First.toml"), str(tmp_path / "Second.toml")]
    explanation = api.explain(tiny.model("a = Exp(x)\nb = Relu(a)\ny = Tanh(b)"), "Second", files)
    (match,) = explanation.matches
    assert (match.root, match.fate) == ("b", "taken")
    assert match.detail.startswith("taken by First: ")
    (beginning,) = explanation.beginnings
    assert (beginning.operators, beginning.nodes, beginning.taken, beginning.others) == (("Relu",), 0, 1, {"Tanh": 1})
    assert beginning.takers == ("First",)
    assert explanation.attempts == ()


def test_what_is_missing_is_named_where_nothing_can_begin(tiny: Tiny) -> None:
    said = api.explain(tiny.model("a = Neg(x)\ny = Tanh(a)"), "Softmax").to_dict()
    assert said["matches"] == said["attempts"] == []
    assert all(one["operators"] and one["nodes"] == 0 for one in said["beginnings"])
    titles = [str(part.title) for part in for_explain(said) if isinstance(part, Table)]
    assert titles == ["no ReduceMax or Exp to begin with"]


def test_equal_reasons_stand_together_the_nearest_to_a_match_first(tiny: Tiny) -> None:
    body = "a = Relu(x)\nb = Tanh(a)\nc = Relu(b)\nd = Tanh(c)\ne = Relu(d)\nf = Exp(e)\ny = Neg(f)"
    said = api.explain(tiny.model(body), "Relu->Exp->Abs").to_dict()
    assert [(r["nodes"], r["part"], r["roots"]) for r in said["reasons"]] == [(2, "Abs", ["e"]), (1, "Exp", ["a", "c"])]
    assert said["reasons"][1]["reason"] == "Tanh 'b' is not Exp"
    assert said["beginnings"][0]["missing"] == ["Abs"]
    (shown,) = [part for part in for_explain(said) if isinstance(part, Table)]
    assert str(list(shown.columns[-1].cells)[-1]) == "a and 1 more"
    lines = [part.plain for part in for_explain(said) if isinstance(part, Text)]
    assert "variant 1 needs Abs, which the model does not have" in lines


def test_a_call_in_the_way_says_which_pattern_took_its_nodes(tiny: Tiny, tmp_path: Path) -> None:
    for name, query in (("First", "Exp->Relu"), ("Second", "Neg->Exp")):
        (tmp_path / f"{name}.toml").write_text(f'name = "{name}"\ndoc = "x"\n[[variants]]\nquery = "{query}"\n')
    files = [str(tmp_path / "First.toml"), str(tmp_path / "Second.toml")]
    explanation = api.explain(tiny.model("n = Neg(x)\na = Exp(n)\ny = Relu(a)"), "Second", files)
    assert "is not Exp: its nodes were taken by First" in explanation.attempts[0].stopped.reason


def test_means_that_are_sums_are_found_and_are_left_calls(magika: Path) -> None:
    """That a Reshape by computed sizes puts the axis back is not proved, so no LayerNormalization is written."""
    result = api.fuse(magika, ["LayerNorm"], lower="onnx")
    assert [(pattern.matches, len(pattern.calls)) for pattern in result.patterns] == [(2, 2)]
    assert result.verdict is not None and result.verdict.equal
    assert [(site.operator, site.reason) for site in result.lowered] == [("", "the mean does not keep its axes")] * 2
