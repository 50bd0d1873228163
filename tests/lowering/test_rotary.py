"""Rotary embedding becomes the operator where cosines and sines are the same for both halves, and the halves are the halves."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from onnxtile.fusion.lower.lowering import LoweringFacts
from onnxtile.shapes.resolve import resolve
from onnxtile.verbs.flows.results import FuseResult

Names = Callable[[FuseResult], list[str]]

HALVES = (
    "c = Mul(x, cos) b = Slice(x, half, far, last) n = Neg(b) a = Slice(x, zero, half, last) "
    "r = Concat<axis = -1>(n, a) s = Mul(r, sin) y = Add(c, s)"
)
SHAPE = "float[2,4,3,8]"
ANGLES = np.linspace(0.0, 3.0, 12).reshape(1, 1, 3, 4)
TWICE = np.concatenate([ANGLES, ANGLES], -1)
NUMBERS: dict[str, Any] = {
    "half": [4], "zero": [0], "far": [2**63 - 1], "last": [3], "cos": np.cos(TWICE), "sin": np.sin(TWICE),
}  # fmt: skip


def lowered(bench: Any, body: str = HALVES, dtype: str = "float", shape: str = SHAPE, **off: Any) -> FuseResult:
    model = bench.model(body, {**NUMBERS, **off}, x=shape, y=shape, dtype=dtype)
    result: FuseResult = bench.lower(model, "RotaryEmbedding")
    return result


@pytest.mark.parametrize("dtype", ["float", "float16"])
@pytest.mark.parametrize("shape", [SHAPE, "float[batch,4,3,8]"])
@pytest.mark.parametrize("rank", [2, 3, 4])
def test_it_becomes_one_operator(bench: Any, operators: Names, dtype: str, shape: str, rank: int) -> None:
    angles = TWICE.reshape(TWICE.shape[4 - rank :])
    result = lowered(bench, dtype=dtype, shape=shape, cos=np.cos(angles), sin=np.sin(angles))
    assert operators(result).count("RotaryEmbedding") == 1
    assert not {"Neg", "Mul", "Add"} & set(operators(result))
    assert result.verdict is not None and result.verdict.equal
    assert all(site.equal and not site.skipped for site in result.sites)


def test_angles_that_the_model_puts_together(bench: Any, operators: Names) -> None:
    body = "t = Concat<axis = -1>(f, f) o = Cos(t) cos = Mul(o, one) i = Sin(t) sin = Mul(i, one) " + HALVES
    model = bench.model(body, {**NUMBERS, "one": 1.0}, x=SHAPE, y=SHAPE, inputs=", float[1,1,3,4] f")
    del model.graph.initializer[[t.name for t in model.graph.initializer].index("cos")]
    del model.graph.initializer[[t.name for t in model.graph.initializer].index("sin")]
    result = bench.lower(model, "RotaryEmbedding")
    assert operators(result).count("RotaryEmbedding") == 1


OTHER = np.concatenate([ANGLES, ANGLES + 0.5], -1)
NEAR_MISSES = [
    ("other angles for the second half", HALVES, {"cos": np.cos(OTHER)}, "not known to be the same"),
    ("cut elsewhere", HALVES, {"half": [3]}, "not cut in the middle"),
    ("along another axis", HALVES.replace("axis = -1", "axis = 1"), {"last": [1], "half": [2]}, "last axis"),
    ("the first half is negated", HALVES.replace("Concat<axis = -1>(n, a)", "Concat<axis = -1>(a, n)"), {}, ""),
    ("not negated", HALVES.replace("Neg(b)", "Abs(b)"), {}, ""),
    ("angles for each head", HALVES, {"cos": np.cos(np.repeat(TWICE, 4, 1))}, "cosines have the shape"),
]


@pytest.mark.parametrize(("what", "body", "off", "reason"), NEAR_MISSES, ids=[n[0] for n in NEAR_MISSES])
def test_a_near_miss_stays_a_call(
    bench: Any, tmp_path: Any, what: str, body: str, off: dict[str, Any], reason: str
) -> None:
    del what
    file = tmp_path / "loose.toml"
    query = "Slice#b->(Neg|Abs)-*>Concat#r-*>Mul-*>Add<*-Mul;Concat#r<*-Slice#a"
    file.write_text(f"name = 'RotaryEmbedding'\ndoc = 'matches more'\n[[variants]]\nquery = '{query}'\n")
    model = bench.model(body, {**NUMBERS, **off}, x=SHAPE, y=SHAPE)
    result = bench.lower(model, str(file))
    assert [site.operator for site in result.lowered] == [""]
    assert reason in result.lowered[0].reason


# Sizes and numbers that a model computes from shapes are known where they follow, and not where they do not.


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
