"""Pattern files: their fragments, their order, and the line at fault where they are wrong."""

from __future__ import annotations

import re
from pathlib import Path

import onnx
import onnx_ir as ir
import pytest

from onnxtile import api
from onnxtile.fusion.fuse import fuse
from onnxtile.fusion.pattern import chosen_patterns, compiled, expanded, from_file, pattern_set, set_names
from onnxtile.fusion.pattern_file import PatternFile
from onnxtile.model.load import load
from onnxtile.query.match import MAX_NODES
from onnxtile.query.names import require_known
from onnxtile.report.table import Line
from onnxtile.report.tables import for_explain
from onnxtile.system.errors import PatternError, QueryError
from onnxtile.system.registry import data_folder
from onnxtile.system.toml_file import read
from tests.patterns.conftest import Tiny
from tests.query.test_parse import assert_operators_are_read

# Pattern files that are wrong: each error names the file and the line at fault.


HEAD = 'name = "Mine"\ndoc = "x"\n'
MODEL = """<ir_version: 10, opset_import: ["": 17]> g (float[2, 4] x, float[2, 4] z) => (float[2, 4] y) {
    a = Relu(x) b = Mul(a, z) y = Tanh(b) }"""

CASES: dict[str, tuple[str, int, str]] = {
    "a value is missing": (HEAD + "after =\n", 3, "invalid value"),
    "a string is not closed": ('name = "Mine\ndoc = "x"\n', 1, "illegal character"),
    "three quotes are not closed": (HEAD + "[[variants]]\nquery = '''\nMul->Relu\n", 5, "expected"),
    "a key twice": (HEAD + 'doc = "y"\n', 3, "this key has a value already"),
    "unknown field": (HEAD + 'speed = 3\n[[variants]]\nquery = "Mul->Relu"\n', 3, "unknown key 'speed'"),
    "unknown field of the second variant": (
        HEAD
        + '\n[[variants]]\nquery = "Mul->Relu"\n\n# a comment\n[[variants]]\nquery = """\nMul->Tanh"""\n\nquary = 3\n',
        12,
        "unknown key 'variants.quary'",
    ),
    "a misspelt field that must be there": (
        HEAD + "[[variants]]\nquerry = 'Mul->Relu'\n",
        4,
        "unknown key 'variants.querry' (did you mean 'query'?)",
    ),
    "no table of variants": (HEAD + "variants = 1\n", 3, "field 'variants': 1 should be a list"),
    "a table of a kind that is none": (
        HEAD + "[lower.cuda]\nop = 'Relu'\n[[variants]]\nquery = 'Mul->Relu'\n",
        3,
        "field 'lower.cuda': \"cuda\" should be 'onnx' or 'ort'",
    ),
    "no name": ('doc = "x"\n[[variants]]\nquery = "Mul->Relu"\n', 1, "'name' is missing"),
    "a variant without a query": (HEAD + '[[variants]]\nquery = "Mul->Relu"\n\n[[variants]]\nnote = "n"\n', 6, "query"),
    "a name that is none": ('doc = "x"\nname = "My Op"\n[[variants]]\nquery = "Mul->Relu"\n', 2, "'name'"),
    "a number for a query": (HEAD + "\n[[variants]]\nnote = 'n'\nquery = 3\n", 6, "query"),
    "no variants": (HEAD, 1, "'variants' is missing"),
    "bad syntax in a query": (HEAD + '[[variants]]\nquery = "Mul->"\n', 4, "the query ends here"),
    "bad syntax on the third line of a query": (
        HEAD + "[[variants]]\nnote = 'n'\nquery = '''\nMul->Tanh;\nMul->->Relu'''\n",
        7,
        "cannot stand here",
    ),
    "bad syntax in a condition": (
        HEAD + '[[variants]]\nquery = "Mul#a->Tanh#b"\nwhere = [\n  "a.axis == b.axis",\n  "a.axis == ",\n]\n',
        7,
        "the query ends here",
    ),
    "an operator that is none": (HEAD + "[[variants]]\nquery = '''\nMul->Tann'''\n", 5, "no operator is called 'Tann'"),
    "an attribute that is none": (HEAD + '[[variants]]\nquery = "Tanh[axis == 1]"\n', 4, "Tanh has no 'axis'"),
    "a clause on its own": (HEAD + '[[variants]]\nquery = "Mul->Tanh;Relu->Mul"\n', 4, "not connected"),
    "everything": (HEAD + '[[variants]]\nquery = "."\n', 4, "matches everything"),
    "everything there is": (HEAD + '[[variants]]\nquery = ".#1(-*>.)*;.#1~>$"\n', 4, ""),
    "a chain of anything": (HEAD + '[[variants]]\nquery = ".->(.|.~>.)"\n', 4, "matches everything"),
    "500 blocks deep": (HEAD + f"[[variants]]\nquery = '{'(' * 500}Mul->Tanh{')' * 500}'\n", 4, "nested deeper"),
    "a test 5,000 deep": (HEAD + f"[[variants]]\nquery = 'Mul[{'not ' * 4000}true]->Tanh'\n", 4, "nested too deeply"),
    "a million times": (HEAD + "[[variants]]\nquery = '(((Mul->Tanh){999999999}){999}){999}'\n", 4, ""),
    "arrays 5,000 deep": (HEAD + f"after = {'[' * 5000}{']' * 5000}\n", 1, "nested too deeply"),
}


@pytest.mark.parametrize(
    ("text", "known"),
    [
        (HEAD + '[[variants]]\nquery = "Add"\nxyz = 3\n', "there is note, query, where"),
        (HEAD + 'xyz = 3\n[[variants]]\nquery = "Add"\n', "there is after, assumes, doc, fragments, in_place,"),
    ],
)
def test_an_unknown_key_lists_those_of_its_table(tmp_path: Path, text: str, known: str) -> None:
    file = tmp_path / "mine.toml"
    file.write_text(text)
    with pytest.raises(PatternError) as caught:
        from_file(file)
    assert str(caught.value.hint).startswith(known)


@pytest.mark.parametrize("case", CASES)
def test_an_error_names_file_and_line(tmp_path: Path, case: str) -> None:
    text, line, words = CASES[case]
    file = tmp_path / "mine.toml"
    file.write_text(text, "utf-8")
    with pytest.raises(PatternError) as caught:
        api.fuse(onnx.parser.parse_model(MODEL), [str(file)], verify=False)
    first, *rest = str(caught.value).splitlines()
    assert first.startswith(f"{file}:{line}: "), first
    assert words in first
    shown = re.match(r"line (\d+): ", rest[0]) if rest else None
    assert shown is None or int(shown[1]) == line  # the line above the caret is numbered as in the file


def test_an_unknown_key_at_the_top_lists_no_keys_of_other_tables(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text(HEAD + 'xyzzy = 1\n[[variants]]\nquery = "Mul->Relu"\n')
    with pytest.raises(PatternError) as caught:
        api.fuse(onnx.parser.parse_model(MODEL), [str(file)], verify=False)
    assert caught.value.hint is not None and "variants" in caught.value.hint
    assert "query" not in caught.value.hint and "attributes" not in caught.value.hint


def test_not_utf_8(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_bytes(b'name = "Mine"\ndoc = "\xff"\n')
    with pytest.raises(PatternError, match=r"mine\.toml:2: this is not UTF-8"):
        api.fuse(onnx.parser.parse_model(MODEL), [str(file)], verify=False)


def test_two_files_of_one_name(tmp_path: Path) -> None:
    first, second = tmp_path / "first.toml", tmp_path / "second.toml"
    first.write_text(HEAD + '[[variants]]\nquery = "Mul->Tanh"\n')
    second.write_text('\ndoc = "y"\nname = "Mine"\n[[variants]]\nquery = "Relu->Mul"\n')
    with pytest.raises(PatternError) as caught:
        api.fuse(onnx.parser.parse_model(MODEL), [str(first), str(second)], verify=False)
    assert str(caught.value) == f"{second}:3: the name 'Mine' is taken: {first}:1 gives it as well"
    # The same file twice is one pattern.
    assert api.fuse(onnx.parser.parse_model(MODEL), [str(first), str(first)], verify=False).fused == 1


def test_a_query_of_the_command_line_matches_everything() -> None:
    with pytest.raises(QueryError, match="matches everything"):
        api.fuse(onnx.parser.parse_model(MODEL), [".~>."], verify=False)


@pytest.fixture(name="chain", scope="module")
def _chain() -> ir.Model:
    """Return twice as many Relu, one after the other, as a match may have."""
    nodes: list[ir.Node] = []
    first = value = ir.Value(name="x", type=ir.TensorType(ir.DataType.FLOAT), shape=ir.Shape((2,)))
    for i in range(2 * MAX_NODES):
        nodes.append(ir.Node("", "Relu", [value], outputs=[ir.Value(name=f"v{i}")], name=f"n{i}"))
        value = nodes[-1].outputs[0]
    return ir.Model(ir.Graph([first], [value], nodes=nodes, opset_imports={"": 17}, name="chain"), ir_version=10)


@pytest.mark.parametrize("query", ["Relu->Relu*", "(Relu->Relu)+", "Relu#1+;Relu#1->$", "Relu#1->.*;Relu#1<-$"])
def test_a_match_of_too_many_nodes_is_refused(tmp_path: Path, chain: ir.Model, query: str) -> None:
    file = tmp_path / "mine.toml"
    file.write_text(f"{HEAD}[[variants]]\nquery = '{query}'\n")
    with pytest.raises(PatternError) as caught:
        fuse(chain, [from_file(file)])
    assert str(caught.value).startswith(f"{file}:4: variant 1: a match has more than 10,000 nodes")


def test_a_query_that_branches_without_end_takes_a_bounded_number_of_steps(tmp_path: Path) -> None:
    """60 crossings with two ways on each: 2 to the 60 ways to the end, where what the query asks for is not."""
    text, last = "", "x"
    for i in range(60):
        text += f"a{i} = Relu({last}) b{i} = Tanh({last}) c{i} = Add(a{i}, b{i})\n"
        last = f"c{i}"
    head = '<ir_version: 10, opset_import: ["": 17]>'
    model = onnx.parser.parse_model(
        f"{head} g (float[2] x) => (float[2] {last}, float[2] s) {{ {text} s = Softmax(x) }}"
    )
    file = tmp_path / "mine.toml"
    file.write_text(f"{HEAD}[[variants]]\nquery = '''\nRelu~*>(Add | Relu | Tanh)*~*>Softmax'''\n")
    with pytest.raises(PatternError, match=rf"^{re.escape(str(file))}:5: .*too many steps"):
        fuse(load(model), [from_file(file)])


# Fragments of pattern files: what they stand for, and what is said where they are wrong.


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


# The order in which chosen patterns run: as they are given, but each after those it needs, whatever option names it.


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
    lines = [part.plain for part in for_explain(said) if isinstance(part, Line)]
    assert "ran before it: SiLU (1 fused)" in lines
    said = api.explain(tiny.model(GATED), "Mish", [gated, "SiLU", "Mish"]).to_dict()
    assert said["earlier"] == [{"name": "SiLU", "fused": 1}, {"name": "Gated", "fused": 1}]


@pytest.mark.parametrize("text", ["Relu->Exp", "Relu[", "Relu;Relu#1", "(Relu)"])
def test_the_operators_of_a_pattern_are_single_nodes(tmp_path: Path, text: str) -> None:
    path = tmp_path / "p.toml"
    path.write_text(f'name = "P"\ndoc = "x"\noperators = ["{text}"]\n[[variants]]\nquery = "Exp->Relu"\n')
    with pytest.raises(PatternError, match=r"p\.toml:3: operators: "):
        from_file(path)


SHIPPED = sorted(data_folder("patterns").rglob("*.toml"))


@pytest.mark.parametrize("path", SHIPPED, ids=[f"{path.parent.name}/{path.stem}" for path in SHIPPED])
def test_a_file_of_the_library_fulfils_the_schema_that_no_command_loads_for_it(path: Path) -> None:
    read(path, PatternError).validated(PatternFile)


@pytest.mark.parametrize("path", SHIPPED, ids=[f"{path.parent.name}/{path.stem}" for path in SHIPPED])
def test_the_queries_of_a_file_of_the_library_are_right(path: Path) -> None:
    names = {pattern.name for name in set_names() for pattern in pattern_set(name)}
    for program in compiled(from_file(path)).programs:
        require_known(program.query, names)
        assert_operators_are_read(program)
