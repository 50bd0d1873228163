"""Multi-head attention in the forms in which models have it: each is found, and computes the same."""

from __future__ import annotations

from collections import Counter
from itertools import combinations

import onnx
import pytest
from onnx import helper

from onnxtile import api
from tests.build import side_by_side
from tests.patterns.conftest import Tiny

_PRODUCT = "{0}a = MatMul(x, W_8_8)\n"
_BIASED = "{0}m = MatMul(x, W_8_8)\n{0}a = Add({0}m, W_8)\n"
_SPLIT = "{0}b = Reshape({0}a, [2, 6, 2, 4])\n{0}h = Transpose<perm=[0, 2, 1, 3]>({0}b)\n"
_CORE = "t = Transpose<perm=[0, 1, 3, 2]>(kh)\nr = MatMul(qh, t)\na = Mul(r, 0.5)\nw = Softmax<axis=-1>(a)\ni = MatMul(w, vh)\n"
_END = "j = Transpose<perm=[0, 2, 1, 3]>(i)\nl = Reshape(j, [2, 6, 8])\ny = MatMul(l, W_8_8)"
_ROTARY = (
    "{0}lo = Slice({0}h, [0], [2], [3])\n{0}hi = Slice({0}h, [2], [4], [3])\n{0}n = Neg({0}hi)\n{0}t = Concat<axis=-1>({0}n, {0}lo)\n"
    "{0}s = Mul({0}t, W_6_4)\n{0}c = Mul({0}h, W_6_4)\n{0}r = Add({0}c, {0}s)\n"
)
_PARTIAL = (
    "{0}p = Slice({0}h, [0], [2], [3])\n{0}q = Slice({0}h, [2], [4], [3])\n{0}lo = Slice({0}p, [0], [1], [3])\n"
    "{0}hi = Slice({0}p, [1], [2], [3])\n{0}n = Neg({0}hi)\n{0}t = Concat<axis=-1>({0}n, {0}lo)\n"
    "{0}s = Mul({0}t, W_6_2)\n{0}c = Mul({0}p, W_6_2)\n{0}o = Add({0}c, {0}s)\n{0}r = Concat<axis=-1>({0}o, {0}q)\n"
)
_PAIRS = (
    "{0}lo = Slice({0}h, [0], [4], [3], [2])\n{0}hi = Slice({0}h, [1], [4], [3], [2])\n{0}n = Neg({0}hi)\n{0}u = Unsqueeze({0}n, [-1])\n"
    "{0}v = Unsqueeze({0}lo, [-1])\n{0}w = Concat<axis=-1>({0}u, {0}v)\n{0}t = Reshape({0}w, [2, 2, 6, 4])\n"
    "{0}s = Mul({0}t, W_6_4)\n{0}c = Mul({0}h, W_6_4)\n{0}r = Add({0}c, {0}s)\n"
)
_NORM = (
    "{0}s = Pow({0}h, 2.0)\n{0}v = ReduceMean<axes=[-1], keepdims=1>({0}s)\n{0}e = Add({0}v, 0.00001)\n{0}d = Sqrt({0}e)\n"
    "{0}i = Reciprocal({0}d)\n{0}n = Mul({0}h, {0}i)\n{0}r = Mul({0}n, W_4)\n"
)
_PAST = "{0}p = Reshape(z, [2, 2, 6, 4])\n{0}r = Concat<axis=2>({0}p, {0}h)\n"
_ONE = "o = MatMul(x, W_8_24)\n"
_REPEATED = (
    "{0}a = MatMul(x, W_8_4)\n{0}b = Reshape({0}a, [2, 6, 1, 4])\n{0}g = Transpose<perm=[0, 2, 1, 3]>({0}b)\n{0}u = Unsqueeze({0}g, [2])\n"
    "{0}e = Expand({0}u, [2, 1, 2, 6, 4])\n{0}h = Reshape({0}e, [2, 2, 6, 4])\n"
)


def _heads(product: str = _PRODUCT) -> str:
    return "".join((product + _SPLIT).format(name) for name in "qkv")


def _core(*changed: str) -> str:
    """Return the core; of `changed` it reads what came of them by a rotation, a norm or a concatenation."""
    core = _CORE
    for name in changed:
        core = core.replace(f"{name}h", f"{name}r")
    return core


PLAIN = _heads() + _CORE + _END
FORMS = {
    "a product each": PLAIN,
    "a product and a bias each": _heads(_BIASED) + _CORE + "j = Transpose<perm=[0, 2, 1, 3]>(i)\n"
    "l = Reshape(j, [2, 6, 8])\nf = MatMul(l, W_8_8)\ny = Add(f, W_8)",
    "a mask added": PLAIN.replace("w = Softmax<axis=-1>(a)", "b = Add(a, W_6_6)\nw = Softmax<axis=-1>(b)"),
    "the scale on Q and on K": _heads()
    + "qr = Mul(qh, 0.7071)\nkt = Transpose<perm=[0, 1, 3, 2]>(kh)\nkr = Mul(kt, 0.7071)\nr = MatMul(qr, kr)\nw = Softmax<axis=-1>(r)\n"
    + "i = MatMul(w, vh)\n"
    + _END,
    "one product, split": _ONE + "qa, ka, va = Split<axis=-1>(o)\n" + "".join(map(_SPLIT.format, "qkv")) + _CORE + _END,
    "one product, taken apart": _ONE
    + "c = Reshape(o, [2, 6, 3, 2, 4])\np = Transpose<perm=[2, 0, 3, 1, 4]>(c)\n"
    + "".join(f"{n}g = Gather<axis=0>(p, [{i}])\n{n}h = Squeeze({n}g, [0])\n" for i, n in enumerate("qkv"))
    + _CORE
    + _END,
    "one product, sliced": _ONE
    + "".join(f"{n}a = Slice(o, [{8 * i}], [{8 * i + 8}], [2])\n" for i, n in enumerate("qkv"))
    + "".join(map(_SPLIT.format, "qkv"))
    + _CORE
    + _END,
    "repeated heads": (_PRODUCT + _SPLIT).format("q") + "".join(map(_REPEATED.format, "kv")) + _CORE + _END,
    "rotary embedding": _heads() + "".join(map(_ROTARY.format, "qk")) + _core("q", "k") + _END,
    "rotary embedding of a part": _heads() + "".join(map(_PARTIAL.format, "qk")) + _core("q", "k") + _END,
    "rotary embedding of neighbours": _heads() + "".join(map(_PAIRS.format, "qk")) + _core("q", "k") + _END,
    "projections that split and merge heads, by Einsum": "".join(
        f'{n}a = Einsum<equation="abc,cde->abde">(x, W_8_2_4)\n{n}c = Add({n}a, W_2_4)\n{n}h = Transpose<perm=[0, 2, 1, 3]>({n}c)\n'
        for n in "qkv"
    )
    + _CORE
    + 'j = Transpose<perm=[0, 2, 1, 3]>(i)\ny = Einsum<equation="abcd,cde->abe">(j, W_2_4_8)',
    "norms of Q and K": _heads() + "".join(map(_NORM.format, "qk")) + _core("q", "k") + _END,
    "a past": _heads() + "".join(map(_PAST.format, "kv")) + _core("k", "v") + _END,
    "softmax of two axes, as the version converter writes that of older opsets": PLAIN.replace(
        "w = Softmax<axis=-1>(a)", "f = Flatten<axis=3>(a)\ng = Shape(a)\ns = Softmax<axis=-1>(f)\nw = Reshape(s, g)"
    ),
    "merged in two steps": PLAIN.replace("j = ", "f = Reshape(i, [2, 2, 6, 4])\nj = ").replace("3]>(i)", "3]>(f)"),
}


_NATIVE = "i = Attention<scale=0.5>({})\n"
NATIVE_FORMS = {
    "a product each": _heads() + _NATIVE.format("qh, kh, vh") + _END,
    "rotary embedding and a mask": _heads()
    + "".join(map(_ROTARY.format, "qk"))
    + _NATIVE.format("qr, kr, vh, W_6_6")
    + _END,
    "one product, split": _ONE
    + "qa, ka, va = Split<axis=-1, num_outputs=3>(o)\n"
    + "".join(map(_SPLIT.format, "qkv"))
    + _NATIVE.format("qh, kh, vh")
    + _END,
    "heads that Attention splits itself": "".join(map(_BIASED.format, "qkv"))
    + "i = Attention<q_num_heads=2, kv_num_heads=2>(qa, ka, va)\ny = MatMul(i, W_8_8)",
}
"""Forms around the operator of ONNX: exports of opset 23 have it."""


def _calls(model: onnx.ModelProto) -> int:
    fused = api.fuse(model)
    assert fused.verdict is None or fused.verdict.equal
    return sum(len(result.calls) for result in fused.patterns if result.name == "MultiHeadAttention")


@pytest.mark.parametrize("form", FORMS)
def test_a_form_is_found_and_computes_the_same(tiny: Tiny, form: str) -> None:
    assert _calls(tiny.model(FORMS[form])) == 1


@pytest.mark.parametrize("form", NATIVE_FORMS)
def test_a_form_around_attention_of_onnx_is_found_and_computes_the_same(tiny: Tiny, form: str) -> None:
    assert _calls(tiny.model(NATIVE_FORMS[form], opset=23)) == 1


def test_attention_of_onnx_stays_an_operator_where_operators_are_asked_for(tiny: Tiny) -> None:
    result = api.fuse(tiny.model(NATIVE_FORMS["a product each"], opset=23), lower="onnx")
    assert result.verdict is not None and result.verdict.equal
    types = [node.op_type for node in result.model.graph]
    assert types.count("Attention") == 1 and types.count("MatMul") == 4
    assert not result.model.functions


def test_attention_of_onnx_over_values_that_no_weight_projects_is_left_alone(tiny: Tiny) -> None:
    values = "".join(
        f"{name}b = Reshape({name}, [2, 6, 2, 4])\n{name}h = Transpose<perm=[0, 2, 1, 3]>({name}b)\n" for name in "qkv"
    )
    assert _calls(tiny.model(values + _NATIVE.format("qh, kh, vh") + _END, opset=23)) == 0


def test_keys_and_values_that_are_kept_are_results_of_their_own(tiny: Tiny) -> None:
    model = tiny.model(FORMS["a past"])
    model.graph.output.extend(helper.make_tensor_value_info(name, 1, [2, 2, 12, 4]) for name in ("kr", "vr"))
    assert _calls(model) == 1


MISSES = {
    "Q is not projected by a weight": ("qa = MatMul(x, W_8_8)", "qg = Reshape(x, [2, 6, 8])\nqa = Exp(qg)"),
    "the result is not projected": ("y = MatMul(l, W_8_8)", "y = Exp(l)"),
    "softmax over all scores of a head": (
        "w = Softmax<axis=-1>(a)",
        "f = Flatten<axis=2>(a)\ng = Shape(a)\ns = Softmax<axis=-1>(f)\nw = Reshape(s, g)",
    ),
    "the weights are read outside": ("w = Softmax<axis=-1>(a)", "w = Softmax<axis=-1>(a)\nu = Identity(w)"),
}


@pytest.mark.parametrize("name", MISSES)
def test_a_near_miss_is_left_alone(tiny: Tiny, name: str) -> None:
    old, new = MISSES[name]
    assert old in PLAIN
    model = tiny.model(PLAIN.replace(old, new))
    if "u = " in new:
        model.graph.output.append(helper.make_tensor_value_info("u", 1, [2, 2, 6, 6]))
    assert _calls(model) == 0


_PARTS = {
    "scale": "{1} = Mul({0}, 0.5)\n",
    "mask": "{1} = Add({0}, W_6_6)\n",
    "cap": "{0}d = Div({0}, 30.0)\n{0}t = Tanh({0}d)\n{1} = Mul({0}t, 30.0)\n",
    "type": "{1} = Cast<to=1>({0})\n",
    "turn": "{1} = Transpose<perm=[0, 2, 1]>({0})\n",
    "axes": "{0}u = Unsqueeze({0}, [1])\n{1} = Squeeze({0}u, [1])\n",
    "sink": "{1} = Concat<axis=-1>({0}, W_2_6_1)\n",
    "largest": "{0}m = ReduceMax<axes=[-1], keepdims=1>({0})\n{1} = Sub({0}, {0}m)\n",
}
_CHOICES = [chosen for count in range(len(_PARTS) + 1) for chosen in combinations(_PARTS, count)]
_OTHER_ORDERS = [
    ("cap", "mask", "scale"),
    ("largest", "mask"),
    ("type", "cap", "turn", "scale", "sink", "largest"),
    ("largest", "sink", "type"),
]


def _composed(parts: tuple[str, ...]) -> str:
    body, last = "t = Transpose<perm=[0, 2, 1]>(k)\nr = MatMul(q, t)\n", "r"
    for i, part in enumerate(parts):
        body, last = body + _PARTS[part].format(last, f"a{i}"), f"a{i}"
    body += f"e = Softmax<axis=-1>({last})\n"
    cut = "w = Slice(e, [0], [6], [2])\n" if "sink" in parts else "w = Cast<to=1>(e)\n"
    return body + cut + "y = MatMul(w, v)"


def test_the_parts_of_attention_compose(tiny: Tiny) -> None:
    cases = [*_CHOICES, *_OTHER_ORDERS]
    whole = side_by_side(tiny.model(_composed(parts)) for parts in cases)
    fused = api.fuse(whole, ["ScaledDotProductAttention"], verify=False)
    calls = (node for node in fused.model.graph if node.name in fused.patterns[0].calls)
    found = Counter(str(node.outputs[0].name).partition("_")[0] for node in calls)
    assert [parts for number, parts in enumerate(cases) if found[f"m{number}"] != 1] == []


@pytest.mark.parametrize("parts", [tuple(_PARTS), *_OTHER_ORDERS], ids=" ".join)
def test_composed_parts_compute_the_same(tiny: Tiny, parts: tuple[str, ...]) -> None:
    result = api.fuse(tiny.model(_composed(parts)), ["ScaledDotProductAttention"])
    assert result.verdict is not None and result.verdict.equal
    assert [node.op_type for node in result.model.graph if node.op_type != "Transpose"] == ["ScaledDotProductAttention"]


@pytest.mark.parametrize(("axis", "fused"), [(4, 1), (-1, 1), (3, 0)])
def test_of_five_axes_softmax_runs_along_the_last(axis: int, fused: int) -> None:
    """NesT has heads, blocks of pixels and the pixels of a block."""
    values = ", ".join(f"float[2,3,4,6,8] {name}" for name in "qkv")
    text = f"""<ir_version: 9, opset_import: ["": 17]> g ({values}) => (float[2,3,4,6,8] y)
    {{ t = Transpose<perm=[0,1,2,4,3]>(k) s = MatMul(q, t) w = Softmax<axis={axis}>(s) y = MatMul(w, v) }}"""
    assert api.fuse(onnx.parser.parse_model(text), ["ScaledDotProductAttention"]).fused == fused
