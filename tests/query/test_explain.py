"""Why a query does not match: near misses, each with the words it stopped at and the reason."""

from __future__ import annotations

import tomllib
from pathlib import Path

import numpy as np
import pytest

from onnxtile.query.explain import Stopped, explain
from onnxtile.query.match import Matcher, compiled
from onnxtile.query.program import compile_query
from tests.query.conftest import Graphs, Small

PATTERNS = Path(__file__).parent.parent.parent / "patterns" / "aidge"


def _aidge(name: str) -> str:
    variant, *_ = tomllib.loads((PATTERNS / f"{name}.toml").read_text("utf-8"))["variants"]
    query: str = variant["query"]
    return query


def stops(small: Small, query: str) -> list[Stopped]:
    known = {node.op_type for node in small.model.graph.all_nodes()}
    return explain(Matcher(small.model, small.constants), compiled(query, known))


def at_fault(query: str, stopped: Stopped) -> str:
    return query[slice(*stopped.span)]


LAYER_NORM = (
    "m=ReduceMean(x);s=Sub(x,m);p=Pow(s,E);v=ReduceMean(p);a=Add(v,F);q=Sqrt(a);d=Div(s,q);w=Mul(d,G);b=Add(w,H)"
)
NEAR_NORMS = [
    # what is changed, at which words the query stops, how many nodes it had, where it stood, and why
    ("q=Sqrt(a)", "q=Exp(a)", "Sqrt", 5, "a", "Exp 'q' is not Sqrt"),
    ("d=Div(s,q)", "d=Mul(s,q)", "Div#1", 6, "q", "Mul 'd' is not Div"),
    ("p=Pow(s,E)", "p=Pow(s,e)", "Producer", 9, "p", "'e' is an input of the graph"),
    (
        "a=Add(v,F)",
        "f=Exp(f);a=Add(v,f)",
        "Producer",
        10,
        "a",
        "ReduceMean 'v' is in the match already; Exp 'f' is not constant",
    ),
    ("b=Add(w,H)", "b=Add(w,H);t=Tanh(w)", "Add#2", 8, "w", "'w' is read by Add 'b', Tanh 't'; '~' allows that"),
    ("b=Add(w,H)", "b=Add(w,H);t=Tanh(q)", "Div#1", 6, "q", "'q' is read by Tanh 't', Div 'd'; '~' allows that"),
    ("b=Add(w,H)", "t=Tanh(w)", "Add#2", 8, "w", "Tanh 't' is not Add"),
    (";b=Add(w,H)", "", "Add#2", 8, "w", "'w' is an output of the graph, and read by nothing"),
    ("d=Div(s,q)", "d=Div(x,q)", "Div#1", 9, "s", "Div#1 is Div 'd', but here is Pow 'p'"),
    (
        "b=Add(w,H)",
        "b=Add(w,H);t=Tanh(s)",
        "~>$",
        13,
        "s",
        "Sub 's' leads on to Tanh 't', where '$' says that nothing further is",
    ),
    ("s=Sub(x,m)", "z=Sub(x,m);s=Exp(z)", "Pow#1", 2, "z", "Exp 's' is not Pow"),
]


@pytest.mark.parametrize(("old", "new", "words", "matched", "node", "reason"), NEAR_NORMS)
def test_near_misses_of_a_layer_norm(
    graph: Graphs, old: str, new: str, words: str, matched: int, node: str, reason: str
) -> None:
    assert old in LAYER_NORM
    query = _aidge("layer_norm")
    best = stops(graph(LAYER_NORM.replace(old, new)), query)[0]
    assert (best.root, best.node, len(best.nodes)) == ("m", node, matched)
    assert best.reason == reason
    assert at_fault(query, best) == words


ATTENTION = "m=MatMul(q,k);d=Div(m,S);s=Softmax(d);o=MatMul(s,v)"
NEAR_ATTENTIONS = [
    ("d=Div(m,S)", "d=Mul(m,S)", "Div#1", 1, "m", "Mul 'd' is not Div"),
    ("d=Div(m,S)", "d=Div(S,m)", "Div#1", 1, "m", "Div 'd' reads 'm' as input 1, not 0"),
    ("d=Div(m,S)", "d=Div(m,r)", "Producer", 4, "d", "'r' is an input of the graph"),
    ("s=Softmax(d)", "a=Add(d,b);s=Softmax(a)", "Softmax", 2, "d", "Add 'a' is not Softmax"),
    ("o=MatMul(s,v)", "c=Tanh(s);o=MatMul(c,v)", "MatMul", 3, "s", "Tanh 'c' is not MatMul"),
    (
        "o=MatMul(s,v)",
        "o=MatMul(s,v);w=Exp(s)",
        "MatMul",
        3,
        "s",
        "'s' is read by MatMul 'o', Exp 'w'; '~' allows that",
    ),
]


@pytest.mark.parametrize(("old", "new", "words", "matched", "node", "reason"), NEAR_ATTENTIONS)
def test_near_misses_of_an_attention(
    graph: Graphs, old: str, new: str, words: str, matched: int, node: str, reason: str
) -> None:
    query = _aidge("scaled_dot_product_attention")
    best = stops(graph(ATTENTION.replace(old, new)), query)[0]
    assert (best.root, best.node, len(best.nodes), at_fault(query, best)) == ("m", node, matched, words)
    assert best.reason == reason


REASONS = [
    ("a=Softmax(x){axis=1}", "Softmax[axis == -1]", "Softmax 'a': axis is 1, not -1"),
    ("a=Softmax(x){axis=1}", "Softmax[axis in [0, 2]]", "Softmax 'a': axis is 1, not in [0, 2]"),
    ("a=Softmax(x){axis=1}", "Softmax[axis < 1]", "Softmax 'a': axis is 1, not < 1"),
    ("a=Softmax(x){axis=1}", "Softmax[axis != 1]", "Softmax 'a': axis is 1"),
    ("a=Softmax(x){axis=1}", "Softmax[not axis == 1]", "Softmax 'a': axis == 1 holds"),
    ("a=Softmax(x){axis=1}", "Softmax[1 < axis]", "Softmax 'a': axis is 1, so 1 < axis is false"),
    ("a=Softmax(x){axis=1}", "Softmax[axis == 1 and rank == 3]", "Softmax 'a': rank is 2, not 3"),
    ("a=Softmax(x){axis=1}", "Softmax[axis == 0 or rank == 3]", "Softmax 'a': axis is 1, not 0; rank is 2, not 3"),
    ("a=Softmax(x)", "Softmax[shape == [1, 2]]", "Softmax 'a': shape is [2, 2], not [1, 2]"),
    ("a=Softmax(x)", "Softmax[dtype == 'float16']", "Softmax 'a': dtype is 'float', not 'float16'"),
    ("a=Mul(x,K)", "Mul[inputs[1].value ≈ 0.5]", "Mul 'a': inputs[1].value is [1.0], not about 0.5"),
    ("a=Mul(x,K)", "Mul[constant == 0.5]", "Mul 'a': constant is 'K' = [1.0], not 0.5"),
    ("a=Mul(x,y)", "Mul[constant == 0.5]", "Mul 'a': Mul has 0 constant inputs, not 1"),
    ("a=Mul(x,y)", "Mul[inputs[1].value == 1]", "Mul 'a': 'y' is not constant"),
    ("a=Mul(x,y)", "Mul[inputs[0].constant]", "Mul 'a': inputs[0].constant is False"),
    ("a=Clip(x)", "Clip[min == 0]", "Clip 'a': Clip 'a' does not give 'min'"),
    ("a=Relu(x);b=Tanh(a)", "Relu->(Exp|Sqrt)", "Tanh 'b' is not Exp; Tanh 'b' is not Sqrt"),
    ("a=Relu(x);b=Tanh(a)", "Relu->Exp?->Sqrt", "Tanh 'b' is not Exp; Tanh 'b' is not Sqrt"),
    ("a=Relu(x);b=Add(y,a)", "Relu->Add", "Add 'b' reads 'a' as input 1, not 0"),
    ("a=Relu(x);b=Mul(a,a)", "Relu->Mul", "'a' is read by Mul 'b' 2 times; '~' allows that"),
    ("a=Relu(x)", "Relu->Mul", "'a' is an output of the graph, and read by nothing"),
    ("a=Relu(x)", "Relu-1-0>Mul", "Relu 'a' has no output 1"),
    ("a=Add(x,y)", "Add<7-Mul", "Add 'a' has no input 7"),
    ("a=Clip(x,,K)", "Clip<1-Producer", "Clip 'a' has no input 1"),
    ("a=Add(x,y)", "Add<-Mul", "'x' is an input of the graph"),
    ("s,t=Split(x);a=Relu(t)", "Relu<-Split", "'t' is output 1 of Split 's', not 0"),
    ("a=Relu(x);b=Add(a,y)", "Add<-$", "Add 'b' comes from Relu 'a', where '$' says that nothing further is"),
    ("a=Relu(x);b=Mul(a,a)", "Mul#1<~Relu;Mul#1<1~Relu", "Relu 'a' is in the match already"),
    ("a=Relu(x);b=Mul(a,K)", "Mul#1<-Relu#1;Mul#1<1-Relu#1", "Relu#1 is Relu 'a', but here is the constant 'K'"),
    (
        "a=Relu(x);b=Mul(a,a)",
        "Mul#1<~@Relu;Mul#1<1~Relu",
        "Relu 'a' is looked at already, by another node of the query",
    ),
    ("a=Relu(x);b=Mul(a,y)", "Mul#1<-@.#1;Mul#1<1-@.#1", ".#1 is Relu 'a', but here is the input 'y'"),
    ("a=Relu(x);b=Mul(a,y)", "Mul<1-@Tanh", "the input 'y' is not Tanh"),
    (
        "a=Relu(x);b=Relu(y);c=Add(a,b)",
        "Add#1<-Relu#1;Add#1<1-Relu#1",
        "Relu#1 is Relu 'a', but here is Relu 'b'",
    ),
    (
        "a=Relu(x);b=Tanh(a)",
        "Relu->Exp#1?->Tanh;Exp#1->Sqrt",
        "Exp#1 is not in the match: its part of the query was left out",
    ),
]


@pytest.mark.parametrize(("text", "query", "reason"), REASONS)
def test_reasons(graph: Graphs, text: str, query: str, reason: str) -> None:
    assert stops(graph(text), query)[0].reason == reason


def test_a_condition_that_does_not_hold(graph: Graphs) -> None:
    small = graph("a=Relu(x);b=Softmax(a){axis=0};c=Mul(b,y)")
    texts = ("soft.axis == -1", "soft.inputs[0] == product.inputs[1]")
    matcher = Matcher(small.model, small.constants)
    reasons = []
    for text in texts:
        program = compile_query("Softmax#soft->Mul#product", (text,))
        (stopped,) = explain(matcher, program)
        assert (stopped.clause, stopped.span) == (text, (0, len(text)))
        reasons.append(stopped.reason)
    assert reasons[0] == "'soft.axis == -1' does not hold: soft.axis is 0, not -1"
    assert reasons[1].endswith("'a' is not constant")


def test_only_roots_without_a_match_are_explained_the_furthest_first(graph: Graphs) -> None:
    text = "a=Relu(x);b=Tanh(a);c=Exp(b);d=Relu(x);e=Tanh(d);f=Sqrt(e);g=Relu(x);h=Sqrt(g)"
    first, second = stops(graph(text), "Relu->Tanh->Exp")
    assert first.to_dict() == {
        "root": "d",
        "nodes": ["d", "e"],
        "clause": "Relu->Tanh->Exp",
        "part": "Exp",
        "span": [12, 15],
        "node": "e",
        "reason": "Sqrt 'f' is not Exp",
    }
    assert (second.root, second.nodes, second.node) == ("g", ("g",), "g")


def test_the_clause_at_fault_is_named(graph: Graphs) -> None:
    query = "Relu->Tanh#1; Tanh#1<1-Producer ;Tanh#1->Exp"
    (stopped,) = stops(graph("a=Relu(x);b=Tanh(a);c=Exp(b)"), query)
    assert stopped.clause == "Tanh#1<1-Producer"
    assert at_fault(query, stopped) == "Producer"


def test_a_query_that_matches_everywhere_leaves_nothing_to_explain(graph: Graphs) -> None:
    small = graph(LAYER_NORM, constants={"E": np.asarray(2.0, np.float32)})
    found = stops(small, _aidge("layer_norm"))
    assert [(one.root, one.reason) for one in found] == [("v", "Add 'a' is not Sub")]


def test_every_site_of_a_real_model_has_a_reason(graph: Graphs) -> None:
    import onnx

    from tests.conftest import ZOO

    path = ZOO / "gpt2_ts14.onnx"
    if not path.exists():
        pytest.skip("the zoo is not beside this checkout")
    small = graph.of(onnx.load(path))
    query = _aidge("scaled_dot_product_attention")
    found = stops(small, query)
    assert len(found) == sum(node.op_type == "MatMul" for node in small.model.graph)
    assert all(one.reason and one.span and one.nodes for one in found)
    assert [len(one.nodes) for one in found] == sorted((len(one.nodes) for one in found), reverse=True)


def test_a_value_that_a_query_only_looks_at_begins_no_partial_match(graph: Graphs) -> None:
    """What reads it does: other readers are told of where no root got further."""
    query = "@.#x->Relu#r->Tanh"
    (nearest,) = stops(graph("a=Relu(x);b=Sqrt(a);c=Exp(b)"), query)
    assert (nearest.root, nearest.nodes, nearest.reason) == ("x", ("a",), "Sqrt 'b' is not Tanh")
    assert not stops(graph("a=Relu(x);b=Tanh(a);c=Exp(b)"), query)
    assert {one.nodes for one in stops(graph("a=Exp(x)"), query)} == {()}
