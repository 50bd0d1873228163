"""Every production of the grammar, and errors that say where and what was expected."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onnxtile.query.language import (
    ANY_NODE,
    ONCE,
    Alternative,
    Clause,
    Comparison,
    Edge,
    ElementOf,
    End,
    Expression,
    ListOf,
    Logic,
    Name,
    Node,
    Not,
    Number,
    Parallel,
    PropertyOf,
    QueryBlock,
    Repeat,
    Sequence,
    Text,
    parse,
    parse_condition,
)
from onnxtile.query.program import Program, compile_query
from onnxtile.system.errors import QueryError
from tests.draws import draws


def only(text: str) -> Clause:
    (clause,) = parse(text).clauses
    return clause


def sequence(text: str) -> Sequence:
    clause = only(text)
    assert isinstance(clause, Sequence)
    return clause


def node(text: str) -> Node:
    clause = only(text)
    assert isinstance(clause, Node)
    return clause


def expression(text: str) -> Expression:
    test = node(f"A[{text}]").test
    assert test is not None
    return test


# Edges

EDGES = {
    "->": (True, 0, 0, True),
    "-1>": (True, 0, 1, True),
    "-*>": (True, 0, None, True),
    "-0->": (True, 0, 0, True),
    "-2->": (True, 2, 0, True),
    "-2-1>": (True, 2, 1, True),
    "-*-0>": (True, None, 0, True),
    "-0-*>": (True, 0, None, True),
    "-*-*>": (True, None, None, True),
    "~>": (True, 0, 0, False),
    "~1>": (True, 0, 1, False),
    "~*>": (True, 0, None, False),
    "~2-1>": (True, 2, 1, False),
    "<-": (False, 0, 0, True),
    "<1-": (False, 0, 1, True),
    "<*-": (False, 0, None, True),
    "<1-2-": (False, 2, 1, True),
    "<-2-": (False, 2, 0, True),
    "<*-0-": (False, 0, None, True),
    "<0-*-": (False, None, 0, True),
    "<*-*-": (False, None, None, True),
    "<~": (False, 0, 0, False),
    "<1~": (False, 0, 1, False),
    "<*~": (False, 0, None, False),
    "<1-2~": (False, 2, 1, False),
}


@pytest.mark.parametrize("text", EDGES)
def test_an_edge_says_direction_output_input_and_whether_others_may_read(text: str) -> None:
    (edge,) = sequence(f"A{text}B").edges
    assert (edge.forward, edge.output, edge.input, edge.exclusive) == EDGES[text]
    assert edge.span == (1, 1 + len(text))


@pytest.mark.parametrize("text", [e for e in EDGES if len(e) > 2])
def test_white_space_is_free_inside_an_edge(text: str) -> None:
    (spaced,), (plain,) = sequence(f"A {' '.join(text)} B").edges, sequence(f"A{text}B").edges
    assert (spaced.forward, spaced.output, spaced.input) == (plain.forward, plain.output, plain.input)


@pytest.mark.parametrize("text", ["--", "=>", "-->", "~*~0>", "<>", "<", ">", "<1>", "-a>"])
def test_what_is_no_edge_is_an_error(text: str) -> None:
    with pytest.raises(QueryError):
        parse(f"A{text}B")


# Nodes


@pytest.mark.parametrize(
    ("text", "type_", "anchor"),
    [
        ("Relu", "Relu", None),
        ("Relu#1", "Relu", "1"),
        ("Relu # 1", "Relu", "1"),
        ("Relu#name_2", "Relu", "name_2"),
        ("Relu#", "Relu", ""),
        (".", ".", None),
        (".#x", ".", "x"),
        ("com.microsoft::FusedMatMul#1", "com.microsoft::FusedMatMul", "1"),
        ("_x", "_x", None),
    ],
)
def test_a_node_has_a_type_and_perhaps_an_anchor(text: str, type_: str, anchor: str | None) -> None:
    found = node(text)
    assert (found.type, found.anchor, found.test, found.repeat) == (type_, anchor, None, ONCE)


def test_the_key_of_an_anchor_is_type_and_name() -> None:
    assert [node(text).key for text in ("Sub#1", ".#1", "Sub#", "Sub")] == ["Sub#1", ".#1", "Sub#", None]


@pytest.mark.parametrize(
    ("text", "repeat"),
    [("A", ONCE), ("A?", Repeat(0, 1)), ("A*", Repeat(0, None)), ("A+", Repeat(1, None)), ("A{3}", Repeat(1, 3))],
)
def test_quantifiers_of_nodes_and_blocks(text: str, repeat: Repeat) -> None:
    assert node(text).repeat == repeat
    block = only(f"(B->{text}){text[1:]}")
    assert isinstance(block, QueryBlock) and block.repeat == repeat


def test_a_node_may_have_everything() -> None:
    found = node("Softmax # s [ axis == -1 ] *")
    assert (found.type, found.anchor, found.repeat) == ("Softmax", "s", Repeat(0, None))
    assert isinstance(found.test, Comparison)


# Blocks and clauses


def test_blocks_nest() -> None:
    outer = only("((A))")
    assert isinstance(outer, QueryBlock) and isinstance(outer.body, QueryBlock) and isinstance(outer.body.body, Node)


def test_alternatives_and_parallels_take_nodes_sequences_and_blocks() -> None:
    either, both = sequence("A->(B|(C->D)|E->F)").items[1], sequence("A~>(B&(C|D)&E)").items[1]
    assert isinstance(either, QueryBlock) and isinstance(either.body, Alternative) and len(either.body.branches) == 3
    assert isinstance(both, QueryBlock) and isinstance(both.body, Parallel) and len(both.body.branches) == 3


def test_the_end_stands_for_no_further_node() -> None:
    assert isinstance(sequence("A~>$").items[1], End)


@pytest.mark.parametrize("text", ["A->B;C", "A->B;C;", " A -> B\n;\tC ; \n"])
def test_clauses_are_separated_by_semicolons_of_which_the_last_may_stand_alone(text: str) -> None:
    assert len(parse(text).clauses) == 2


def test_spans_point_into_the_text() -> None:
    text = "A->(B#1[x == 1]|C)+;B#1~>$"
    query = parse(text)
    first, second = query.clauses
    assert isinstance(first, Sequence) and isinstance(second, Sequence)
    block, end = first.items[1], second.items[1]
    assert isinstance(block, QueryBlock) and isinstance(block.body, Alternative)
    parts = (*query.clauses, first.edges[0], block, *block.body.branches, end)
    shown = [text[start:stop] for start, stop in (part.span for part in parts)]
    assert shown == ["A->(B#1[x == 1]|C)+", "B#1~>$", "->", "(B#1[x == 1]|C)+", "B#1[x == 1]", "C", "$"]


# Tests


@pytest.mark.parametrize("sign", ["==", "!=", "<", "<=", ">", ">=", "≈", "in"])
def test_comparisons(sign: str) -> None:
    test = expression(f"x {sign} [1, 2.5]")
    assert isinstance(test, Comparison)
    assert test.operator == sign and test.right == ListOf((Number(1), Number(2.5)))


def test_a_tilde_and_an_equals_sign_are_about_equal() -> None:
    test = expression("value ~= 0.5")
    assert isinstance(test, Comparison) and test.operator == "≈"


@pytest.mark.parametrize(
    ("text", "value"), [("1", 1), ("-1", -1), ("+2", 2), ("1.", 1.0), (".5", 0.5), ("-1e-5", -1e-5), ("1E3", 1000.0)]
)
def test_numbers(text: str, value: float) -> None:
    test = expression(f"x == {text}")
    assert isinstance(test, Comparison)
    assert test.right == Number(value) and isinstance(test.right, Number) and type(test.right.value) is type(value)


@pytest.mark.parametrize("text", ["'tanh'", '"tanh"'])
def test_texts(text: str) -> None:
    test = expression(f"approximate == {text}")
    assert isinstance(test, Comparison) and test.right == Text("tanh")


def test_and_binds_tighter_than_or_and_not_tighter_than_both() -> None:
    test = expression("not a and b or c")
    assert isinstance(test, Logic) and test.operator == "or"
    both = test.operands[0]
    assert isinstance(both, Logic) and both.operator == "and" and isinstance(both.operands[0], Not)
    grouped = expression("not (a and (b or c))")
    assert isinstance(grouped, Not) and isinstance(grouped.operand, Logic)


def test_references() -> None:
    test = expression("inputs[0].shape[-1]")
    assert isinstance(test, ElementOf) and test.position == -1
    assert isinstance(test.base, PropertyOf) and test.base.name == "shape"
    assert isinstance(test.base.base, ElementOf) and isinstance(test.base.base.base, Name)


@pytest.mark.parametrize("text", ["notx", "orx or android", "inside in [1]", "x == []"])
def test_words_may_begin_like_operators(text: str) -> None:
    expression(text)


def test_a_condition_stands_alone() -> None:
    assert isinstance(parse_condition("a.axis == -1 and b"), Logic)
    with pytest.raises(QueryError, match="cannot stand here"):
        parse_condition("a -> b")


# Errors

ERRORS: list[tuple[str, tuple[int, int], str]] = [
    ("", (0, 1), "the query ends here; expected '$', '(', '.', '@' or an operator name"),
    ("A->", (3, 4), "the query ends here"),
    ("->A", (0, 2), "'->' cannot stand here; expected '$', '(', '.', '@' or an operator name"),
    ("A->B;;C", (5, 6), "';' cannot stand here"),
    (";A", (0, 1), "';' cannot stand here"),
    ("A B", (2, 3), "'B' cannot stand here"),
    (
        "A|B",
        (1, 2),
        "'|' cannot stand here; expected ';', a backward edge such as '<-', a forward edge such as '->' or the end",
    ),
    (
        "A->(B&C|D)",
        (7, 8),
        "'|' cannot stand here; expected '&', ')', a backward edge such as '<-' or a forward edge such as '->'",
    ),
    (
        "A->(B",
        (5, 6),
        "the query ends here; expected '&', ')', '|', a backward edge such as '<-' or a forward edge such as '->'",
    ),
    ("A)", (1, 2), "')' cannot stand here"),
    ("()", (1, 2), "')' cannot stand here"),
    ("(A)(B)", (3, 4), "'(' cannot stand here"),
    ("A#1#2", (3, 5), "'#2' cannot stand here"),
    ("A[x]#1", (4, 6), "'#1' cannot stand here"),
    ("A[]", (2, 3), "']' cannot stand here"),
    ("A[x][y]", (4, 5), "'[' cannot stand here"),
    ("A[x = 1]", (4, 5), "'=' cannot stand here"),
    ("A[x == ]", (7, 8), "']' cannot stand here"),
    ("A[x == 'y]", (7, 8), '"\'" cannot stand here'),
    ("A[x[1.5]]", (5, 7), "'.5' cannot stand here; expected ']'"),
    ("A{0}", (1, 4), "a number of times starts at 1"),
    ("A{}", (2, 3), "'}' cannot stand here; expected a number"),
    ("$#1", (1, 3), "'#1' cannot stand here"),
    ("A->B\n->?C", (7, 8), "'?' cannot stand here"),
]


@pytest.mark.parametrize(("text", "span", "reason"), ERRORS)
def test_errors_say_where_and_what_was_expected(text: str, span: tuple[int, int], reason: str) -> None:
    with pytest.raises(QueryError) as caught:
        parse(text)
    assert caught.value.span == span
    assert caught.value.reason.startswith(reason)


def test_the_message_shows_the_line_with_a_caret() -> None:
    with pytest.raises(QueryError) as caught:
        parse("A->B\n-> C D")
    lines = str(caught.value).splitlines()
    assert lines[1] == "line 2: -> C D"
    assert lines[2].index("^") == lines[1].index("D")


HUGE: list[str] = [
    "(" * 10_000,
    "(" * 51 + "A" + ")" * 51,
    "A[" + "not " * 3_000 + "x]",
    "A[" + "[" * 5_000 + "]" * 5_000 + "]",
    "A[" + "(" * 5_000 + "x" + ")" * 5_000 + "]",
    "A[x" + ".a" * 5_000 + "]",
    "A[x" + "[0]" * 5_000 + "]",
    "A{" + "9" * 5_000 + "}",
    "A-" + "9" * 5_000 + ">B",
    "A[x[" + "9" * 5_000 + "]]",
    "A->" * 10_000,
    ("((A*)*)*->" * 1_000) + "B",
]


@pytest.mark.parametrize("text", HUGE, ids=lambda text: text[:12])
def test_what_is_nested_too_deeply_or_too_large_is_an_error(text: str) -> None:
    with pytest.raises(QueryError):
        compile_query(text)


@pytest.mark.parametrize(
    "text",
    [
        "(" * 50 + "A" + ")" * 50,
        "A->(B|C" * 50 + ")" * 50,
        "A[" + "not " * 150 + "x]",
        "->".join(["A"] * 2_000),
        "A[x == " + "9" * 5_000 + "]",
        "A[" + " or ".join(["x"] * 3_000) + "]",
    ],
    ids=lambda text: text[:12],
)
def test_what_is_large_but_within_the_limits_is_read_and_compiled(text: str) -> None:
    assert compile_query(text).instructions


def assert_operators_are_read(program: Program) -> None:
    """Assert that what is read of the text without a parse is what the query says."""
    assert program.named == {node.type for node in program.query.nodes} - {ANY_NODE}
    assert program.certain <= {type_ for types in program.query.needed for type_ in types}


@pytest.mark.parametrize(
    ("text", "certain"),
    [
        ('(Mul | Add)->Sqrt?-*>Div#x[a == "]#Pow("]~0>Cast*->Exp+;Div#x<-@Neg', {"Div", "Exp", "Neg"}),
        ("Conv{2}->com.x::Op[f in [[1], (2)]]<1-0-Producer->$", {"Conv", "com.x::Op"}),
    ],
)
def test_certain_operators_are_read_without_a_parse(text: str, certain: set[str]) -> None:
    program = compile_query(text)
    assert program.certain == certain
    assert_operators_are_read(program)


@pytest.mark.parametrize(
    ("text", "needed"),
    [
        ("A?->B+->(C->D | E)->(F | G?)*", [("B",), ("C", "E")]),
        ("(A->B & C)->D;D#1->(E & (F | G)){2}", [("A", "C"), ("D",), ("D",), ("E",), ("F", "G")]),
        ("(A | B?)->C", [("C",)]),
    ],
)
def test_a_query_needs_what_no_match_can_do_without(text: str, needed: list[tuple[str, ...]]) -> None:
    assert list(parse(text).needed) == needed


# Properties

_PIECES = [*"()[]{}#;.$?*+&|,'\"<>=~-≈ \n", "A", "Relu", "Producer", "->", "~>", "<-", "<1~", "-*>", "0", "1", "#1"]
_PIECES += ["and", "or", "not", "in", "==", "x", "1.5", "::", "9" * 30]


@given(st.one_of(st.text(max_size=12), st.lists(st.sampled_from(_PIECES), max_size=12).map("".join)))
@draws(500)
def test_any_text_is_a_query_or_a_query_error(text: str) -> None:
    try:
        program = compile_query(text)
    except QueryError as error:
        start, stop = error.span
        assert 0 <= start <= stop <= len(text) + 1
    else:
        assert_operators_are_read(program)


_EDGE_PIECES: list[str] = list(EDGES)


def _written() -> st.SearchStrategy[tuple[str, Any]]:
    """Return texts of items with what they must be read as: nested tuples of types, edges and quantifiers."""
    repeats = st.sampled_from(["", "?", "*", "+", "{2}"])
    types = st.sampled_from(["Relu", ".", "Producer", "a.b::C"])
    leaf = st.builds(lambda t, a, r: (t + a + r, ("node", t + a, r)), types, st.sampled_from(["", "#1"]), repeats)

    def larger(inner: st.SearchStrategy[tuple[str, Any]]) -> st.SearchStrategy[tuple[str, Any]]:
        def joined(items: list[tuple[str, Any]], edges: list[str], repeat: str) -> tuple[str, Any]:
            text = items[0][0] + "".join(e + item[0] for e, item in zip(edges, items[1:], strict=False))
            count = min(len(items) - 1, len(edges))
            body = ("sequence", [item[1] for item in items[: count + 1]], [EDGES[e] for e in edges[:count]])
            return f"( {text} ){repeat}", ("block", body if count else items[0][1], repeat)

        def branched(items: list[tuple[str, Any]], sign: str) -> tuple[str, Any]:
            return f"({sign.join(item[0] for item in items)})", ("block", (sign, [item[1] for item in items]), "")

        edges = st.lists(st.sampled_from(_EDGE_PIECES), max_size=3)
        sequences = st.builds(joined, st.lists(inner, min_size=1, max_size=4), edges, repeats)
        branches = st.builds(branched, st.lists(inner, min_size=2, max_size=3), st.sampled_from(["|", "&"]))
        return st.one_of(sequences, branches)

    return st.recursive(leaf, larger, max_leaves=12)


_SIGNS = {Repeat(0, 1): "?", Repeat(0, None): "*", Repeat(1, None): "+", ONCE: "", Repeat(1, 2): "{2}"}


def _read(clause: Clause) -> Any:
    match clause:
        case Node():
            return ("node", clause.key or clause.type, _SIGNS[clause.repeat])
        case QueryBlock():
            return ("block", _read(clause.body), _SIGNS[clause.repeat])
        case Sequence():
            return ("sequence", [_read(item) for item in clause.items], [_plain(edge) for edge in clause.edges])
        case Parallel():
            return ("&", [_read(branch) for branch in clause.branches])
        case Alternative():
            return ("|", [_read(branch) for branch in clause.branches])
        case End():
            return ("end",)


def _plain(edge: Edge) -> tuple[bool, int | None, int | None, bool]:
    return (edge.forward, edge.output, edge.input, edge.exclusive)


@given(_written())
@draws(200)
def test_what_is_written_is_what_is_read(case: tuple[str, Any]) -> None:
    text, expected = case
    assert _read(only(text)) == expected


# Conditions name anchors of their query.

UNKNOWN_ANCHORS = [
    ("gatee.inputs[0] in gate.inputs", "gatee", "did you mean 'gate'?"),
    ("not (gate.size == [1, sigmiod.size] or true)", "sigmiod", "did you mean 'sigmoid'?"),
    ("axis == 1", "axis", "choose gate, sigmoid"),
]


@pytest.mark.parametrize(("condition", "name", "hint"), UNKNOWN_ANCHORS)
def test_a_condition_on_an_unknown_anchor_is_an_error_when_it_is_read(condition: str, name: str, hint: str) -> None:
    query = "Sigmoid#sigmoid-*>Mul#gate"
    with pytest.raises(QueryError, match=f"no anchor #{name}") as caught:
        compile_query(query, (condition,))
    start, stop = caught.value.span
    assert condition[start:stop] == name
    assert caught.value.hint == hint
    known = "not (gate.size == [1, sigmoid.size] or true)"
    assert compile_query(query, (known,))


def test_a_condition_of_a_query_without_anchors_is_an_error() -> None:
    with pytest.raises(QueryError, match="no anchor #conv") as caught:
        compile_query("Conv", ("conv.group == 1",))
    assert caught.value.hint == "write #name after a node of the query"


def test_a_clause_with_a_misspelt_anchor_names_the_nearest() -> None:
    with pytest.raises(QueryError, match="not connected") as caught:
        compile_query("Sub#centre->Pow;Sub#center->Div")
    assert caught.value.hint == "did you mean Sub#centre?"
    with pytest.raises(QueryError, match="not connected") as caught:
        compile_query("Sub#centre->Pow;Tanh->Div")
    assert caught.value.hint == "share an anchor with them"
