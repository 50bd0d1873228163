"""Nodes that change nothing: a pattern is found through them wherever they stand, they are in its body, and unfuse gives them back."""

from __future__ import annotations

import re
from collections import Counter

import pytest

from onnxtile import api
from tests.patterns.conftest import Tiny
from tests.patterns.test_near_misses import ATTENTION, GELU, RMS_NORM, SILU, SWIGLU

ROTARY = """
a = Slice(x, [0], [4], [2])
b = Slice(x, [4], [8], [2])
n = Neg(b)
r = Concat<axis=-1>(n, a)
s = Mul(r, W_8_8)
c = Mul(x, W_8_8)
y = Add(c, s)
"""
WHOLE = {
    "GeLU": GELU,
    "RMSNorm": RMS_NORM,
    "RotaryEmbedding": ROTARY,
    "ScaledDotProductAttention": ATTENTION,
    "SiLU": SILU,
    "SwiGLU": SWIGLU,
}
NOTHING = {
    "Identity": "{1} = Identity({0})",
    "Cast": "{1} = Cast<to=1>({0})",
    "CastLike": "{1} = CastLike({0}, 1.0)",
    "Concat": "{1} = Concat<axis=0>({0})",
    "Max": "{1} = Max({0})",
    "Dropout": "{1} = Dropout({0}, 0.5)",
    "Slice": "{1} = Slice({0}, [0], [9223372036854775807], [0])",
    "Slice to its end": "{1} = Slice({0}, [0], [2], [0])",
    "Transpose": "{1} = Transpose<perm=[0, 1, 2]>({0})",
    "Reshape": "{1} = Reshape({0}, [0, 0, -1])",
    "Squeeze": "{1} = Squeeze({0})",
    "Expand": "{1} = Expand({0}, [1])",
    "two": "{1}_o = Identity({0})\n{1} = Cast<to=1>({1}_o)",
}
SOMETHING = {
    "another type": "{1}_o = Cast<to=7>({0})\n{1} = Cast<to=1>({1}_o)",
    "another order": "{1} = Transpose<perm=[0, 2, 1]>({0})",
    "backwards": "{1} = Slice({0}, [-1], [-9223372036854775807], [0], [-1])",
    "a part, and again": "{1}_o = Slice({0}, [0], [1], [0])\n{1} = Expand({1}_o, [2, 1, 1])",
    "a random operator": "{1}_o = Cast<to=9>(1.0)\n{1} = Dropout({0}, 0.5, {1}_o)",
}


def _edges(whole: str) -> list[tuple[int, int, str]]:
    """Return for each value that a line reads: the line, where in it the name stands, and the name."""
    lines = whole.strip().splitlines()
    names = re.compile(r"(?<=[(,] )[a-z]\b|(?<=\()[a-z]\b")
    return [(i, found.start(), found[0]) for i, line in enumerate(lines) for found in names.finditer(line)]


def _with(whole: str, edge: tuple[int, int, str], between: str) -> str:
    """Return `whole` with `between` on one edge."""
    line, start, name = edge
    lines = whole.strip().splitlines()
    lines[line] = f"{lines[line][:start]}new{lines[line][start + 1 :]}"
    return "\n".join([*lines[:line], between.format(name, "new"), *lines[line:]])


def _made(tiny: Tiny, body: str) -> Counter[str]:
    results = api.fuse(tiny.model(body, shape="2,8,8"), verify=False).patterns
    return Counter({result.name: len(result.calls) for result in results if result.calls})


@pytest.mark.parametrize("name", WHOLE)
def test_a_pattern_is_found_wherever_a_node_changes_nothing(tiny: Tiny, name: str) -> None:
    for edge in _edges(WHOLE[name]):
        body = _with(WHOLE[name], edge, NOTHING["Cast"])
        assert _made(tiny, body)[name] == 1, body


@pytest.mark.parametrize("nothing", NOTHING)
@pytest.mark.parametrize("name", ["RMSNorm", "RotaryEmbedding"])
def test_it_is_in_the_body_and_given_back(tiny: Tiny, name: str, nothing: str) -> None:
    *_, edge = _edges(WHOLE[name])
    model = tiny.model(_with(WHOLE[name], edge, NOTHING[nothing]), shape="2,8,8")
    result = api.fuse(model)
    assert result.verdict is not None and result.verdict.equal
    assert [node.op_type for node in result.model.graph] == [name]
    again = api.unfuse(result.model)
    assert [node.op_type for node in again.model.graph] == [node.op_type for node in model.graph.node]
    assert api.verify(model, again.model).equal


@pytest.mark.parametrize("something", SOMETHING)
@pytest.mark.parametrize("name", ["RotaryEmbedding", "GeLU", "SiLU"])
def test_what_changes_something_is_no_part_of_it(tiny: Tiny, name: str, something: str) -> None:
    *_, edge = _edges(WHOLE[name])
    assert _made(tiny, _with(WHOLE[name], edge, SOMETHING[something]))[name] == 0


def test_casts_to_the_type_that_a_value_has_hide_no_rotary_embedding(tiny: Tiny) -> None:
    body = ROTARY.replace("(x,", "(f,").replace("a = Slice", "f = Cast<to=1>(x)\na = Slice", 1)
    each = ROTARY.replace("c = Mul(x", "g = Cast<to=1>(x)\nc = Mul(g")
    both = each.replace("(x, [", "(f, [").replace("a = Slice", "f = Cast<to=1>(x)\na = Slice", 1)
    for text in (body, each, both):
        model = tiny.model(text.replace("y = Add(c, s)", "z = Add(c, s)\ny = Cast<to=1>(z)"), shape="2,8,8")
        result = api.fuse(model)
        assert sum(len(one.calls) for one in result.patterns if one.name == "RotaryEmbedding") == 1
        (call,) = [node for node in result.model.graph if node.op_type == "RotaryEmbedding"]
        assert len(call.inputs) == 3


def test_what_others_read_stays_outside(tiny: Tiny) -> None:
    """The result of the cast is read by a node outside: both x and that are operands of the call."""
    body = "c = Cast<to=1>(x)\ns = Sigmoid(x)\ng = Mul(c, s)\nt = Tanh(c)\ny = Add(g, t)"
    result = api.fuse(tiny.model(body), ["SiLU"])
    assert result.verdict is not None and result.verdict.equal
    assert [node.op_type for node in result.model.graph] == ["Cast", "SiLU", "Tanh", "Add"]


def test_shapes_that_are_open_prove_it_where_they_are_equal(tiny: Tiny) -> None:
    body = "s = Sigmoid(x)\nr = Reshape(s, [0, 0, -1])\ny = Mul(x, r)"
    for shape, found in (('"n",6,8', 1), ('"n",6,"m"', 0)):
        model = tiny.model(body, shape=shape.replace('"', ""))
        assert sum(len(one.calls) for one in api.fuse(model, ["SiLU"]).patterns) >= found


@pytest.mark.parametrize(
    ("epsilon", "calls"),
    [("l = CastLike(0.00001, x)", 1), ("h = Cast<to=10>(0.00001)\nl = CastLike(h, x)", 0)],
    ids=["the type it has", "another type"],
)
def test_a_constant_that_is_cast_to_the_type_of_an_operand_is_one(tiny: Tiny, epsilon: str, calls: int) -> None:
    # jax2onnx writes epsilon so. The Cast is in the body, or a path from x would leave the meta-op and come back.
    model = tiny.model(epsilon + RMS_NORM.replace("Add(v, 0.00001)", "Add(v, l)"))
    result = api.fuse(model, ["RMSNorm"])
    assert result.fused == calls
    if calls:
        assert result.verdict is not None and result.verdict.equal
        assert [node.op_type for node in result.model.graph] == ["RMSNorm"]
        unfused = api.unfuse(result.model).model
        assert [node.op_type for node in unfused.graph] == [node.op_type for node in model.graph.node]
