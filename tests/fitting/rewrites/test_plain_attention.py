"""Fused attention is written as products, which compute the same, and is then cut by heads and tokens."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

import onnxtile
from onnxtile.fitting.editing import ModelEdit
from onnxtile.fitting.rewrites.plain_attention import write_attention
from onnxtile.fitting.rewrites.rewrite import token_cuts
from onnxtile.model.load import load
from onnxtile.shapes.resolve import resolve

TOKENS, WIDTH, HEADS = 13, 24, 3

PARTS = "q = MatMul(x, wq) k = MatMul(x, wk) v = MatMul(x, wv)"
TURNED = " ".join(f"{one}r = Reshape({one}, split) {one}t = Transpose<perm=[0,2,1,3]>({one}r)" for one in "qkv")
BACK = "t = Transpose<perm=[0,2,1,3]>(o) a = Reshape(t, join)"
FEW = "q = MatMul(x, wq) k = MatMul(x, wf) v = MatMul(x, wg)"

STANDARD = {
    "tokens": f"{PARTS} a = Attention<q_num_heads=3, kv_num_heads=3>(q, k, v)",
    "heads": f"{PARTS} {TURNED} o = Attention(qt, kt, vt) {BACK}",
    "a scale": f"{PARTS} a = Attention<q_num_heads=3, kv_num_heads=3, scale=0.2>(q, k, v)",
    "causal": f"{PARTS} a = Attention<q_num_heads=3, kv_num_heads=3, is_causal=1>(q, k, v)",
    "a mask of numbers": f"{PARTS} a = Attention<q_num_heads=3, kv_num_heads=3>(q, k, v, numbers)",
    "a mask of truths": f"{PARTS} a = Attention<q_num_heads=3, kv_num_heads=3>(q, k, v, seen)",
    "one head of keys": f"{FEW} a = Attention<q_num_heads=3, kv_num_heads=1>(q, k, v)",
}
RUNTIME = {
    "three operands": f"{PARTS} a = com.microsoft.MultiHeadAttention<num_heads=3>(q, k, v)",
    "a bias": f"{PARTS} a = com.microsoft.MultiHeadAttention<num_heads=3>(q, k, v, bias)",
    "causal": f"{PARTS} a = com.microsoft.MultiHeadAttention<num_heads=3, unidirectional=1>(q, k, v)",
    "padding": f"{PARTS} a = com.microsoft.MultiHeadAttention<num_heads=3>(q, k, v, bias, padding)",
    "a bias of scores": f"{PARTS} a = com.microsoft.MultiHeadAttention<num_heads=3, scale=0.2>(q, k, v, , , scores)",
    "projected": "a = com.microsoft.Attention<num_heads=3>(x, packed, bias)",
    "projected, padding": "a = com.microsoft.Attention<num_heads=3, mask_filter_value=-5.0>(x, packed, bias, padding)",
    "projected, causal": "a = com.microsoft.Attention<num_heads=3, unidirectional=1>(x, packed, bias)",
}
LEFT = {
    "a cap": f"{PARTS} a = Attention<q_num_heads=3, kv_num_heads=3, softcap=2.0>(q, k, v)",
    "scores that are read": f"{PARTS} a, , , other = Attention<q_num_heads=3, kv_num_heads=3>(q, k, v)",
}


def attention(text: str, opset: int) -> onnx.ModelProto:
    """Return a block with one attention, whose result is `a` of `x`."""
    random = np.random.default_rng(0)
    head = f'<ir_version: 10, opset_import: ["": {opset}, "com.microsoft": 1]>\n'
    more = ", float[1,3,13,13] other" if "other" in text else ""
    made = onnx.parser.parse_model(
        f"{head}g (float[1,{TOKENS},{WIDTH}] x) => (float[1,{TOKENS},{WIDTH}] y{more}) {{ {text} b = MatMul(a, wo) y = Add(b, x) }}"
    )
    shapes: dict[str, tuple[int, ...]] = {name: (WIDTH, WIDTH) for name in ("wq", "wk", "wv", "wo")}
    shapes |= {"wf": (WIDTH, 8), "wg": (WIDTH, 8), "packed": (WIDTH, 3 * WIDTH), "bias": (3 * WIDTH,)}
    shapes |= {"numbers": (TOKENS, TOKENS), "scores": (1, HEADS, TOKENS, TOKENS)}
    arrays: dict[str, Any] = {
        name: random.standard_normal(sizes).astype(np.float32) / 4 for name, sizes in shapes.items()
    }
    arrays |= {"split": np.asarray([1, TOKENS, HEADS, 8]), "join": np.asarray([1, TOKENS, WIDTH])}
    arrays |= {"seen": np.tri(TOKENS, dtype=bool), "padding": np.asarray([[1] * 9 + [0] * 4], np.int32)}
    read = {name for node in made.graph.node for name in node.input}
    made.graph.initializer.extend(
        numpy_helper.from_array(array, name) for name, array in arrays.items() if name in read
    )
    return made


FORMS = [(text, 23) for text in STANDARD.values()] + [(text, 20) for text in RUNTIME.values()]
NAMES = [*(f"standard, {name}" for name in STANDARD), *(f"onnxruntime's, {name}" for name in RUNTIME)]


@pytest.mark.parametrize(("text", "opset"), FORMS, ids=NAMES)
def test_products_compute_what_the_fused_attention_does(text: str, opset: int) -> None:
    proto = attention(text, opset)
    made = load(proto)
    edit = ModelEdit(made, resolve(made, run=True))
    assert len(write_attention(edit)) == 1
    edit.drop_unread()
    assert not {"Attention", "MultiHeadAttention"} & {node.op_type for node in made.graph}
    assert onnxtile.verify(proto, made).equal


# The heads of one head of keys stay together, and a kernel that projects the input by itself has no other tensor before it.
APART = [form for form in FORMS if "kv_num_heads=1" not in form[0] and "packed" not in form[0]]


@pytest.mark.parametrize(("text", "opset"), APART[::4])
def test_fit_cuts_a_fused_attention_by_heads_and_tokens(text: str, opset: int) -> None:
    fitted = onnxtile.fit(attention(text, opset), capacity="smallest", budget="0%")
    assert fitted.after.arena < fitted.before.arena
    assert "heads" in {step.kind for step in fitted.steps}


def test_one_head_of_keys_is_read_by_the_tokens_of_all_heads() -> None:
    made = load(attention(STANDARD["one head of keys"], 23))
    cuts = token_cuts(made, resolve(made, run=True))
    found = None if cuts is None else cuts.cut(4)
    assert found is not None
    cut = found[0]
    scores = [cut.shapes.sizes(node.outputs[0]) for node in cut.model.graph if node.op_type == "Softmax"]
    assert scores == [(1, HEADS, 3, TOKENS)] * 3 + [(1, HEADS, 4, TOKENS)]
    assert "Expand" not in {node.op_type for node in cut.model.graph}


@pytest.mark.parametrize("name", LEFT)
def test_other_forms_stay_fused(name: str) -> None:
    made = load(attention(LEFT[name], 23))
    edit = ModelEdit(made, resolve(made, run=True))
    assert not write_attention(edit)
    edit.drop_unread()
    assert "Attention" in {node.op_type for node in made.graph}
