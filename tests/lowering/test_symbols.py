"""Sizes and numbers that a model computes from shapes are known where they follow, and not where they do not."""

from __future__ import annotations

import onnx
import onnx_ir as ir
import pytest

from onnxtile.fusion.lower.lowering import LoweringFacts
from onnxtile.shapes.resolve import resolve

HEAD = '<ir_version: 10, opset_import: ["": 17]> g (float[batch, seq, 64] x) => (float[a, b, c, d] y) '
SIZES = (
    "<int64[1] last = {2}, int64[1] end = {3}, int64[1] zero = {0}, int64 first = {0}, int64 second = {1}, int64[1] rest = {-1}, "
    "int64[1] size = {16}, int64[1] odd = {24}>"
)
DIMS = (
    "s = Shape(x) g0 = Gather(s, first) b = Unsqueeze(g0, zero) g1 = Gather(s, second) q = Unsqueeze(g1, zero) "
    "f = Concat<axis = 0>(b, q, rest, size) r = Reshape(x, f) y = Transpose<perm = [0, 2, 1, 3]>(r)"
)


def facts_of(body: str) -> tuple[LoweringFacts, dict[str, ir.Value]]:
    model = ir.from_proto(onnx.parser.parse_model(HEAD + SIZES + "{ " + body + " }"))
    values = {v.name or "": v for node in model.graph for v in node.outputs}
    return LoweringFacts(model, resolve(model)), values


def test_what_is_left_of_the_elements_is_a_number() -> None:
    facts, values = facts_of(DIMS)
    assert facts.argument(values["y"]).dims == ("batch", 4, "seq", 16)


@pytest.mark.parametrize("body", [DIMS.replace("rest, size", "rest, odd"), DIMS.replace("(b, q, rest", "(b, b, rest")])
def test_where_nothing_follows_nothing_is_claimed(body: str) -> None:
    facts, values = facts_of(body)
    dims = facts.argument(values["y"]).dims
    assert dims is None or not isinstance(dims[1], int)


def test_a_number_that_comes_from_a_size() -> None:
    facts, values = facts_of(
        "s = Shape(x) n = Slice(s, last, end, zero) c = Cast<to = 1>(n) t = Sqrt(c) h = Div(n, last) "
        "o = Slice(s, zero, last, zero) " + DIMS.replace("s = Shape(x) ", "")
    )
    root, half, unknown = (facts.argument(values[name]).array for name in ("t", "h", "o"))
    assert root is not None and root.tolist() == [8.0]
    assert half is not None and half.tolist() == [32]
    assert unknown is None
