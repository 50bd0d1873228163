"""Sizes that a model computes from its inputs' sizes are known without a run, and none is known that depends on data."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import onnx
import onnx_ir as ir
import pytest

from onnxtile.model.binding import bind, free_inputs, symbols
from onnxtile.model.feeds import sample_feeds
from onnxtile.model.load import load
from onnxtile.model.submodel import exposing
from onnxtile.shapes.resolve import resolve

Text = Callable[..., onnx.ModelProto]


def _computed(model: ir.Model) -> list[ir.Value]:
    return [value for node in model.graph for value in node.outputs if value.name]


@pytest.mark.parametrize("name", ["bert_ts14", "gpt2_ts14", "gpt2_ts14dyn", "t5_encoder_ts14", "llama-sdpa_ts14"])
def test_every_size_is_that_of_a_run(zoo: Callable[[str], Path], name: str) -> None:
    """The engines alone leave hundreds of values of these exports open."""
    model = load(zoo(name))
    bind(model, {symbol: 3 + place for place, symbol in enumerate(symbols(free_inputs(model)))}, {})
    shapes = resolve(model)
    values = _computed(model)
    seen = exposing(model, [value.name or "" for value in values]).run(sample_feeds(model, shapes.sizes))
    assert {value.name: shapes.sizes(value) for value in values} == {name: array.shape for name, array in seen.items()}


def test_a_shape_through_where_and_scatter(text: Text) -> None:
    """Eight by two by three, made of the numbers of x's shape in a way that no engine follows."""
    graph = """g (float[8,6] x) => (float[a,b,c] y) <int64[1] minus = {-1}, int64[3] s = {-1, 2, 3}, int64[1,1] at = {{0}}> {
        d = Shape(x)  e = Slice(d, z, o)  w = Equal(s, minus)  b = Expand(e, t)  r = Where(w, b, s)  y = Expand(u, r) }"""
    constants = ", int64[1] z = {0}, int64[1] o = {1}, int64[1] t = {3}, float[1] u = {1}> {"
    model = load(text(graph.replace(", int64[1,1] at = {{0}}> {", constants)))
    assert resolve(model).sizes(model.graph.outputs[0]) == (8, 2, 3)


def test_what_depends_on_data_stays_open(text: Text) -> None:
    model = load(
        text(
            "g (float[8] x) => (float[a] y, int64[b] c) { n = NonZero(x)  c = Shape(n)  s = Squeeze(n)  y = Gather(x, s) }"
        )
    )
    shapes = resolve(model)
    assert shapes.sizes(model.graph.outputs[0]) is None
    assert shapes.sizes(model.graph.outputs[1]) == (2,)


def test_a_number_that_the_user_feeds_is_not_known(text: Text) -> None:
    model = load(text("g (int64[2] s, float[1] x) => (float[a,b] y) { y = Expand(x, s) }"))
    assert resolve(model).sizes(model.graph.outputs[0]) is None


def test_nothing_large_is_computed(text: Text) -> None:
    """A range of 10¹² numbers, whose length is known all the same."""
    graph = """g (float[1000,1000,1000,1000] x) => (int64[a] y) <int64 z = {0}, int64 o = {1}, int64[1] f = {1}>
        { n = Size(x)  w = Where(c, n, z)  y = Range(z, w, o) }"""
    model = load(text(graph.replace("int64[1] f = {1}", "bool c = {1}")))
    shapes = resolve(model)
    assert shapes.sizes(model.graph.outputs[0]) == (10**12,)


def test_calls_are_followed(text: Text) -> None:
    body = '<opset_import: ["": 17], domain: "local"> Two (a, s) => (y) { y = Expand(a, s) }'
    graph = """g (float[8,1] x) => (float[a,b] y) <int64[2] s = {-1, 4}, int64 m = {-1}, int64[1] z = {0}, int64[1] o = {1}>
        { d = Shape(x)  e = Slice(d, z, o)  q = Equal(s, m)  r = Where(q, e, s)  h = local.Two(x, r)  y = Neg(h) }"""
    model = load(text(graph, functions=body))
    assert resolve(model).sizes(model.graph.outputs[0]) == (8, 4)
