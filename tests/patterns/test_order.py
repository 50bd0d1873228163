"""The order in which chosen patterns run: as they are given, but each after those it needs, whatever option names it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from rich.text import Text

from onnxtile import api
from onnxtile.fusion.pattern import chosen_patterns
from onnxtile.report.tables import for_explain
from onnxtile.system.errors import PatternError

if TYPE_CHECKING:
    from tests.patterns.conftest import Tiny

GATED = "s = Sigmoid(x)\ng = Mul(x, s)\ny = Mul(g, z)"


def _file(folder: Path, name: str, query: str, *after: str) -> str:
    path = folder / f"{name.lower()}.toml"
    path.write_text(f'name = "{name}"\ndoc = "x"\nafter = {list(after)}\n[[variants]]\nquery = "{query}"\n')
    return str(path)


def test_after_holds_between_options(tiny: Tiny, tmp_path: Path) -> None:
    gated = _file(tmp_path, "Gated", "Sigmoid~*>Mul", "SiLU")
    for chosen in ([gated, "SiLU"], ["SiLU", gated]):
        result = api.fuse(tiny.model(GATED), chosen)
        assert [(one.name, len(one.calls)) for one in result.patterns] == [("SiLU", 1), ("Gated", 0)]


def test_a_query_that_names_a_meta_op_comes_after_it(tiny: Tiny, tmp_path: Path) -> None:
    gated = _file(tmp_path, "Gated", "SiLU-*>Mul")
    for chosen in (
        (gated, "SiLU"),
        ["SiLU", gated],
        ("Gated=SiLU-*>Mul", "SiLU"),
        ("Gated=SiLU-*>Mul", "library"),
    ):
        made = {one.name: len(one.calls) for one in api.fuse(tiny.model(GATED), chosen).patterns}
        assert (made["SiLU"], made["Gated"]) == (1, 1)


def test_what_needs_nothing_stays_in_its_order() -> None:
    queries = {"A": "Relu->Tanh", "B": "Relu->Exp", "C": "A->Neg"}
    for given, ran in (("ABC", "ABC"), ("BAC", "BAC"), ("ACB", "ACB"), ("CBA", "ACB"), ("BCA", "BAC"), ("CAB", "ACB")):
        assert "".join(one.name for one in chosen_patterns([(name, queries[name]) for name in given])) == ran


def test_several_queries_of_one_name_come_before_what_names_it() -> None:
    chosen = chosen_patterns([("C", "A->Neg"), ("A", "Relu->Tanh"), ("B", "Relu->Exp"), ("A", "Relu->Abs")])
    assert [one.doc.rpartition(" ")[2] for one in chosen] == ["Relu->Tanh", "Relu->Abs", "A->Neg", "Relu->Exp"]


def test_a_circle_is_an_error_that_names_it(tmp_path: Path) -> None:
    files = [
        _file(tmp_path, "One", "Relu->Tanh", "Two"),
        _file(tmp_path, "Two", "Relu->Exp", "Three"),
        _file(tmp_path, "Three", "Relu->Neg", "One"),
    ]
    with pytest.raises(PatternError, match="in a circle: One > Two > Three > One"):
        chosen_patterns(files)
    with pytest.raises(PatternError, match="in a circle: Two > Three > One > Two"):
        chosen_patterns(["SiLU", ("Zero", "Two->Neg"), *files])


def test_a_long_chain_is_no_circle() -> None:
    queries = [(f"P{i}", f"P{i + 1}->Relu") for i in range(3000)]
    assert [one.name for one in chosen_patterns(queries)] == [name for name, _ in reversed(queries)]


def test_the_explanation_says_what_ran_before(tiny: Tiny, tmp_path: Path) -> None:
    gated = _file(tmp_path, "Gated", "SiLU-*>Mul")
    said = api.explain(tiny.model(GATED), "Gated", [gated, "SiLU", "Mish"]).to_dict()
    assert said["earlier"] == [{"name": "SiLU", "fused": 1}]
    lines = [part.plain for part in for_explain(said) if isinstance(part, Text)]
    assert "ran before it: SiLU (1 fused)" in lines
    said = api.explain(tiny.model(GATED), "Mish", [gated, "SiLU", "Mish"]).to_dict()
    assert said["earlier"] == [{"name": "SiLU", "fused": 1}, {"name": "Gated", "fused": 1}]
