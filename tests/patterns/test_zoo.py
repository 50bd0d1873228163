"""The library finds every site in real models and no other, and says why a pattern did not match."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx_ir as ir
import pytest

from onnxtile import api
from onnxtile.query.program import Check
from onnxtile.report.table import Line, Table
from onnxtile.report.tables import for_explain
from tests.conftest import LIGHT, ZOO
from tests.patterns.conftest import LIBRARY, Tiny

# The library finds every site in the models of the zoo, and no other.


Count = Callable[[ir.Model], dict[str, int]]


def _expected(truth: dict[str, Any]) -> dict[str, int]:
    kinds: Counter[str] = Counter()
    for kind, times in truth["gelu_kind"].items():
        kinds[kind.partition(":")[0]] += times
    named = {name: truth[name] for name in ("layernorm", "rmsnorm", "silu", "attention")}
    return named | {kind: kinds[kind] for kind in ("erf", "tanh", "quick")}


def test_each_model_has_the_sites_that_pytorch_counts(
    zoo: Callable[[str], Path], found: Count, truth: tuple[str, dict[str, Any]]
) -> None:
    name, counted = truth
    got, expected = found(api.fuse(zoo(name), verify=False).model), _expected(counted)
    if name == "whisper_encoder_ts14_sim":
        # The simplifier folds the 1/2 of one GELU into the convolution after it.
        expected["erf"] = min(expected["erf"], max(got["erf"], 5))
    assert got == expected


@pytest.mark.parametrize("name", ["bert-sdpa_ts14", "clip_text_dy20", "qwen3_dy20", "t5_encoder_ts14"])
def test_what_is_fused_computes_the_same(zoo: Callable[[str], Path], name: str) -> None:
    result = api.fuse(zoo(name))
    assert result.verdict is not None and result.verdict.equal
    assert all(site.equal for site in result.sites)


# The neck of PP-OCRv4's recogniser: two blocks of SVTR (https://arxiv.org/abs/2205.00159) with an attention and two norms each, then a
# norm; five convolutions and the two MLPs have SiLU.
SVTR = {"attention": 2, "layernorm": 5, "silu": 7}


@pytest.mark.parametrize("name", LIGHT)
def test_nothing_is_found_where_convolutions_are_all(light: Callable[[str], Path], found: Count, name: str) -> None:
    assert not any(found(api.fuse(light(name), verify=False).model).values())


@pytest.mark.parametrize(
    ("name", "expected"),
    [("ch_PP-OCRv4_det_infer", {}), ("ch_PP-OCRv4_rec_infer", SVTR), ("ch_ppocr_mobile_v2.0_cls_infer", {})],
)
def test_nothing_else_is_found_in_models_that_read_text(
    rapidocr: Callable[[str], Path], found: Count, name: str, expected: dict[str, int]
) -> None:
    got = found(api.fuse(rapidocr(name), verify=False).model)
    assert {kind: count for kind, count in got.items() if count} == expected


@pytest.mark.parametrize("name", ["silero_vad", "silero_vad_half", "silero_vad_op18_ifless"])
def test_nothing_is_found_in_models_that_hear(silero: Callable[[str], Path], found: Count, name: str) -> None:
    assert not any(found(api.fuse(silero(name), verify=False).model).values())


# Attention blocks as both exporters of PyTorch write them: YOLO's PSA block, and that of the VAE of diffusion
# models.


FOLDER = Path(__file__).parents[1] / "golden" / "exports"
WANTED = {
    "psa": {"ScaledDotProductAttention": 1},
    "vae": {"ScaledDotProductAttention": 1, "GroupNorm": 1},
    "vae_linear": {"ScaledDotProductAttention": 1, "MultiHeadAttention": 1, "GroupNorm": 1, "Linear": 4},
}


@pytest.mark.parametrize("exporter", ["torchscript", "dynamo"])
@pytest.mark.parametrize("block", WANTED)
def test_each_block_has_its_attention(block: str, exporter: str, found: Callable[[ir.Model], dict[str, int]]) -> None:
    result = api.fuse(FOLDER / f"{block}_{exporter}.onnx")
    assert result.verdict is not None and result.verdict.equal
    assert all(site.equal for site in result.sites)
    assert found(result.model)["attention"] == 1
    assert {one.name: len(one.calls) for one in result.patterns if one.calls} == WANTED[block]


# Every pattern says why it did not match, on real models, as text and as JSON.


QUICK = {"t5_encoder_ts14": "RMSNorm", "clip_text_dy20": "GeLU", "bert-sdpa_ts14": "MultiHeadAttention"}


@pytest.mark.parametrize(
    ("model", "names"),
    [
        *(pytest.param(model, [name], id=f"{model}-{name}") for model, name in QUICK.items()),
        *(
            pytest.param(path.stem, [*LIBRARY], id=f"{path.stem}-all", marks=pytest.mark.slow)
            for path in sorted(ZOO.glob("*_ts14*.onnx"))
        ),
    ],
)
def test_each_attempt_has_its_place_and_its_reason(zoo: Callable[[str], Path], model: str, names: list[str]) -> None:
    for name in names:
        _require_reasons(zoo(model), name)


def _require_reasons(path: Path, name: str) -> None:
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


def test_a_site_that_was_fused_is_no_partial_match(tiny: Tiny) -> None:
    """A Neg may begin the query; the Exp behind it is in the meta-op."""
    model = tiny.model("a = Neg(x)\nb = Exp(a)\ny = Tanh(b)")
    explanation = api.explain(model, "(Neg | Exp)->Tanh")
    assert explanation.fused == 1
    assert explanation.attempts == ()


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
    shown = str([part.plain for part in for_explain(explanation.to_dict()) if isinstance(part, Line)])
    assert "6 matches, 2 fused, 4 overlapped" in shown
    assert "overlapped inside the fused matches, and so no site of their own: 4" in shown
    assert explanation.causes == ()


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
    lines = [part.plain for part in for_explain(said) if isinstance(part, Line)]
    assert "variant 1 needs Abs, which the model does not have" in lines
    assert not any(isinstance(part, Table) for part in for_explain(said))
    there = api.explain(tiny.model(body.replace("Neg(f)", "Neg(f)\nz = Abs(y)")), "Relu->Exp->Abs").to_dict()
    assert there["reasons"] == said["reasons"]
    (shown,) = [part for part in for_explain(there) if isinstance(part, Table)]
    assert str(list(shown.columns[-1].cells)[-1]) == "a and 1 more"


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


# Why sites are no meta-op: the commonest reason first, and each site once.


def test_an_operator_that_does_the_whole_work_is_the_reason(tiny: Tiny) -> None:
    model = tiny.model("a = Softmax(x)\nb = Softmax(a)\ny = Relu(b)")
    said = api.explain(model, "Softmax").to_dict()
    assert said["already"] == {"Softmax": ["a", "b"]}
    assert said["causes"] == [{"sites": 2, "reason": "already one node: Softmax", "first": "a"}]
    (shown,) = [part for part in for_explain(said) if isinstance(part, Table)]
    assert str(shown.title) == "sites that were not fused"
    (pattern,) = api.fuse(model, ["Softmax"], verify=False).to_dict()["patterns"]
    assert (pattern["matches"], pattern["already"]) == (0, {"Softmax": 2})


def test_the_two_forms_of_gelu_are_told_apart(tiny: Tiny) -> None:
    model = tiny.model('a = Gelu<approximate="tanh">(x)\ny = Gelu(a)', opset=20)
    assert api.explain(model, "GeLUTanh").already == {"Gelu": ("a",)}
    assert api.explain(model, "GeLU").already == {"Gelu": ("y",)}


def test_each_site_counts_once_and_the_commonest_reason_comes_first(tiny: Tiny, tmp_path: Path) -> None:
    (tmp_path / "First.toml").write_text('name = "First"\ndoc = "x"\n[[variants]]\nquery = "Exp->Relu"\n')
    # Relu after Relu: b shares a node with a, and f one with e; First takes j.
    body = "a = Relu(x)\nb = Relu(a)\nc = Relu(b)\nd = Tanh(c)\ne = Relu(d)\nf = Relu(e)\nh = Relu(f)\n"
    body += "i = Exp(h)\nj = Relu(i)\ny = Relu(j)"
    explained = api.explain(tiny.model(body), "Relu->Relu", [str(tmp_path / "First.toml")])
    assert explained.fused == 3
    assert [(one.sites, one.reason.partition(":")[0], one.first) for one in explained.causes] == [
        (2, "overlapped", "b")
    ]
    both = [str(tmp_path / "First.toml"), "Pair=Relu->Relu"]
    taken = api.explain(tiny.model(body), "Pair", both).causes
    assert [(one.sites, one.reason.partition(":")[0]) for one in taken] == [(2, "overlapped"), (1, "taken by First")]
