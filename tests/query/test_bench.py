"""The parts of the comparison with Aidge that need no Aidge."""

from __future__ import annotations

import pytest

from onnxtile.query.graph import identify
from onnxtile.query.language import parse
from onnxtile.query.match import Matcher, compiled
from tests.bench.choices import written_out
from tests.bench.neighbourhoods import KINDS, Neighbourhoods
from tests.query.conftest import Graphs, model_from

TEXT = ";".join(
    f"r{i}=Relu(x);m{i}=Mul(r{i},W);s{i}=Sub(m{i},r{i});t{i}=Tanh(s{i});a{i}=Add(t{i},s{i});p{i}=Pow(s{i},E);u{i}=Tanh(r{i})"
    for i in range(3)
)


@pytest.mark.parametrize("kind", KINDS)
def test_generated_queries_are_legal(graph: Graphs, kind: str) -> None:
    model = model_from(TEXT)
    small = graph.of(model)
    types = {node.name: node.op_type for node in model.graph.node} | dict.fromkeys("WE", "Producer")
    queries = Neighbourhoods(model, types, seed=0).queries(kind, 10)
    assert queries
    matcher = Matcher(small.model, small.constants)
    assert kind == "closed by its type" or any(matcher.find(compiled(query)) for query in queries)


@pytest.mark.parametrize(
    "query", ["Add<*~Tanh?<~Sub", "Sub<*~Relu+", "Add<*~(Sub&Tanh)<*-Sub", "Relu~>(Mul->Sub)*~>Tanh", "Relu~>Mul"]
)
def test_a_root_is_found_by_one_of_the_queries_that_a_query_stands_for(graph: Graphs, query: str) -> None:
    small = graph(TEXT)
    matcher = Matcher(small.model, small.constants)

    def roots(text: str) -> set[str]:
        return {identify(match.root) for match in matcher.find(compiled(text))}

    texts = written_out(query)
    for text in texts:
        parse(text)
    assert roots(query) == set[str]().union(*map(roots, texts))
