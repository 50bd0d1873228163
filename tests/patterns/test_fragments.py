"""Fragments of pattern files: what they stand for, and what is said where they are wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from onnxtile.fusion.pattern import expanded, from_file
from onnxtile.system.errors import PatternError

HEAD = 'name = "Op"\ndoc = "an operator"\n'


def written(folder: Path, fragments: str, variants: str) -> Path:
    path = folder / "op.toml"
    path.write_text(f"{HEAD}[fragments]\n{fragments}\n{variants}\n", "utf-8")
    return path


def test_a_fragment_stands_for_its_text(tmp_path: Path) -> None:
    fragments = "last = 'Relu[{small}]'\nsmall = 'inputs[0].rank == 2'\nsame = 'conv.group == 1'"
    variants = "[[variants]]\nquery = '''\nConv#conv->{last}?\n  ->{ last }'''\nwhere = ['{same} and conv.inputs[0].rank == 4']"
    (program,) = from_file(written(tmp_path, fragments, variants)).programs
    plain = "Conv#conv->Relu[inputs[0].rank == 2]?\n  ->Relu[inputs[0].rank == 2]"
    assert program.query.text == plain
    own = f"{HEAD}[[variants]]\nquery = '''\n{plain}'''\nwhere = ['conv.group == 1 and conv.inputs[0].rank == 4']"
    (tmp_path / "plain.toml").write_text(own, "utf-8")
    assert from_file(tmp_path / "plain.toml").programs == (program,)


def test_the_count_of_a_repetition_is_no_fragment(tmp_path: Path) -> None:
    (program,) = from_file(written(tmp_path, "a = 'Relu'", "[[variants]]\nquery = '{a}#1{2}'")).programs
    assert program.query.text == "Relu#1{2}"


def test_fragments_name_one_another_in_any_depth(tmp_path: Path) -> None:
    chain = "\n".join(f"a{i} = '{{a{i + 1}}}'" for i in range(3000)) + "\na3000 = 'Relu'"
    (program,) = from_file(written(tmp_path, chain, "[[variants]]\nquery = 'Conv->{a0}'")).programs
    assert program.query.text == "Conv->Relu"


AT_FAULT = {
    "unknown": ("chain = 'Relu'", "[[variants]]\nquery = 'Conv->{chian}'", ":6: variant 1: unknown fragment 'chian'"),
    "unknown in a condition": (
        "chain = 'Relu'",
        "[[variants]]\nquery = 'Conv#c'\nwhere = ['{chian}']",
        ":7: variant 1: unknown fragment 'chian'",
    ),
    "contains itself": (
        "a = 'Relu->{b}'\nb = '{a}'",
        "[[variants]]\nquery = 'Conv->{a}'",
        ":7: variant 1: the fragment 'a' contains itself: a > b > a",
    ),
    "too long": (
        "\n".join(f"a{i} = '{'{a' + str(i + 1) + '}'}{'{a' + str(i + 1) + '}'}'" for i in range(40))
        + "\na40 = 'Relu->'",
        "[[variants]]\nquery = '{a0}Relu'",
        "with its fragments this is longer than 100,000 characters",
    ),
    "too many of nothing": (
        "\n".join(f"a{i} = '{'{a' + str(i + 1) + '}'}{'{a' + str(i + 1) + '}'}'" for i in range(40)) + "\na40 = ''",
        "[[variants]]\nquery = '{a0}Relu'",
        "with its fragments this is longer than 100,000 characters",
    ),
    "syntax in a fragment": ("chain = 'Relu->)Add'", "[[variants]]\nquery = 'Conv->{chain}->Mul'", ":4: variant 1: "),
    "syntax after a fragment": (
        "chain = 'Relu'",
        "[[variants]]\nquery = '''\nConv->{chain}\n->)'''",
        ":8: variant 1: ')'",
    ),
    "syntax in a fragment of several lines": (
        "chain = '''\nRelu\n->Add)'''",
        "[[variants]]\nquery = 'Conv->{chain}'",
        ":6: variant 1: ')' cannot stand here",
    ),
    "no text": ("chain = 3", "[[variants]]\nquery = 'Conv'", ":4: field 'fragments.chain'"),
}


@pytest.mark.parametrize("case", AT_FAULT)
def test_a_fragment_at_fault_is_shown_where_it_is(tmp_path: Path, case: str) -> None:
    fragments, variants, message = AT_FAULT[case]
    with pytest.raises(PatternError) as caught:
        from_file(written(tmp_path, fragments, variants))
    assert message in str(caught.value)


def test_the_nearest_fragment_is_the_hint(tmp_path: Path) -> None:
    with pytest.raises(PatternError) as caught:
        from_file(written(tmp_path, "chain = 'Relu'", "[[variants]]\nquery = 'Conv->{chian}'"))
    assert caught.value.hint == "did you mean 'chain'?"


@pytest.mark.parametrize(
    ("span", "origin"),
    [((0, 2), (None, (0, 2))), ((4, 6), ("b", (0, 2))), ((7, 9), (None, (7, 9))), ((10, 11), (None, (10, 11)))],
)
def test_a_span_is_found_in_its_source(span: tuple[int, int], origin: tuple[str | None, tuple[int, int]]) -> None:
    text = expanded("ab->{b}->c", {"b": "xyz"})
    assert text.text == "ab->xyz->c"
    assert text.origin(span) == origin
