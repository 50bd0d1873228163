"""Attention: scores and their product with the values, for every query against every key; nothing is saved where a mask is causal.

The operators of onnxruntime: https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md.
"""

from __future__ import annotations

from onnxtile.inspection.work import CountedNode, NotKnown, OperationCount, Rule


def _count(site: CountedNode) -> OperationCount:
    """Count Attention-23: Q, K and V as (batch, heads, length, head) or, packed, (batch, length, heads × head)."""
    query, key, value = site.input(0), site.input(1), site.input(2)
    past = site.input(4)[2] if site.has(4) else 0
    if len(query) == 4:
        batch, heads, length, head = query
        scores = batch * heads * length * (key[2] + past)
        return OperationCount(scores * (head + value[3]), others=_on(scores, site, 3))
    heads, pairs = site.number("q_num_heads"), query[0] * query[1] * (key[1] + past)
    products = pairs * (query[2] + heads * (value[2] // site.number("kv_num_heads")))
    return OperationCount(products, others=_on(pairs * heads, site, 3))


def _on(scores: int, site: CountedNode, *masks: int) -> int:
    """Return the operations on `scores`: the scale 1, softmax 5, a mask at any of the inputs `masks` 1 each, a cap 3."""
    cap = 3 if site.node.attributes.get_float("softcap", 0.0) else 0
    return scores * (6 + sum(map(site.has, masks)) + cap)


def _count_linear(site: CountedNode) -> OperationCount:
    """Count LinearAttention-27, step by step: each adds a product to the state and reads it, the delta rules read it twice."""
    query, key, value = site.input(0), site.input(1), site.input(2)
    queries, keys = site.number("q_num_heads"), site.number("kv_num_heads")
    state = (key[2] // keys) * (value[2] // keys)
    through = 2 if site.text("update_rule", "gated_delta").endswith("delta") else 1
    return OperationCount(query[0] * query[1] * state * (queries + through * keys))


def _count_fused(site: CountedNode) -> OperationCount:
    """Count com.microsoft::Attention: it projects its input (batch, length, width) to queries, keys and values first."""
    (batch, length, width), weight = site.input(0), site.input(1)
    if site.has(4):
        raise NotKnown("the filled length of an Attention cache is known only in a run")
    out = site.output()[-1]
    projections = batch * length * width * weight[1]
    keys = (weight[1] - out) // 2
    biases = batch * length * weight[1] if site.has(2) else 0
    scores = batch * site.number("num_heads") * length * length
    return OperationCount(projections + batch * length * length * (keys + out), biases, _on(scores, site, 3, 5))


def _count_quantised(site: CountedNode) -> OperationCount:
    """Count com.microsoft::QAttention: integer projections of its input (batch, length, width), then attention in floats."""
    (batch, length, width), weight = site.input(0), site.input(1)
    out, past = site.output()[-1], site.input(8)[3] if site.has(8) else 0
    keys = (weight[1] - out) // 2
    pairs = batch * length * (length + past)
    biases = batch * length * weight[1] if site.has(2) else 0
    scored = _on(pairs * site.number("num_heads"), site, 5)
    return OperationCount(batch * length * width * weight[1] + pairs * (keys + out), biases, scored)


def _count_multi_head(site: CountedNode) -> OperationCount:
    """Count com.microsoft::MultiHeadAttention of separate queries, keys and values (batch, length, width)."""
    if not (site.has(1) and site.has(2)) or site.has(6):
        raise NotKnown("packed or cached operands of MultiHeadAttention are not counted")
    query, key, value = site.input(0), site.input(1), site.input(2)
    if not len(query) == len(key) == len(value) == 3:
        raise NotKnown("packed operands of MultiHeadAttention are not counted")
    biases = query[0] * (query[1] * query[2] + key[1] * (key[2] + value[2])) if site.has(3) else 0
    pairs = query[0] * query[1] * key[1]
    return OperationCount(pairs * (query[2] + value[2]), biases, _on(pairs * site.number("num_heads"), site, 4, 5))


def _count_grouped(site: CountedNode) -> OperationCount:
    """Count com.microsoft::GroupQueryAttention: every query against all keys that it hands out, past ones included.

    Queries are (batch, length, heads × head), or packed with keys and values. A rotation takes three operations an element.
    """
    out, keys = site.output(0), site.output(1) if len(site.node.outputs) > 1 and site.node.outputs[1].name else None
    heads, groups = site.number("num_heads"), site.number("kv_num_heads")
    if keys is None and not site.has(1):
        raise NotKnown("packed operands of a GroupQueryAttention without present keys are not looked into")
    batch, length, width = out
    scores = batch * heads * length * (site.input(1)[1] if keys is None else keys[2])
    rotated = batch * length * (width // heads) * (heads + groups) if site.number("do_rotary", 0) else 0
    scored = _on(scores, site, 10)
    return OperationCount(2 * scores * (width // heads), others=scored + 3 * rotated)


RULE = Rule("attention", frozenset({"Attention"}), _count)
LINEAR = Rule("linear attention", frozenset({"LinearAttention"}), _count_linear)
FUSED = Rule("attention with projections", frozenset({"com.microsoft::Attention"}), _count_fused)
QUANTISED = Rule("quantised attention", frozenset({"com.microsoft::QAttention"}), _count_quantised)
MULTI_HEAD = Rule("multi-head attention", frozenset({"com.microsoft::MultiHeadAttention"}), _count_multi_head)
GROUPED = Rule("grouped-query attention", frozenset({"com.microsoft::GroupQueryAttention"}), _count_grouped)
