"""Operators on sequences of tokens: attention, rotary embeddings, recurrent layers."""

from __future__ import annotations

import math

from onnxtile.operators import reasons, saves, takes
from onnxtile.operators.node_view import MICROSOFT, NodeView, NotApplicable
from onnxtile.operators.reads import AxisLink, AxisLinks, links_of
from onnxtile.operators.table import (
    NO_PRODUCTS,
    NOT_STANDARD,
    Family,
    Left,
    OperationCount,
    Operations,
    Operator,
    Products,
    QuantisedPort,
    without,
)


def attention_work(view: NodeView) -> OperationCount:
    """Count Attention-23: Q, K and V as (batch, heads, length, head) or, packed, (batch, length, heads × head)."""
    query, key, value = view.operand(0), view.operand(1), view.operand(2)
    past = view.operand(4)[2] if view.has(4) else 0
    if len(query) == 4:
        batch, heads, length, head = query
        scores = batch * heads * length * (key[2] + past)
        return OperationCount(scores * (head + value[3]), others=_on(scores, view, 3))
    heads, pairs = view.integer("q_num_heads"), query[0] * query[1] * (key[1] + past)
    products = pairs * (query[2] + heads * (value[2] // view.integer("kv_num_heads")))
    return OperationCount(products, others=_on(pairs * heads, view, 3))


def _on(scores: int, view: NodeView, *masks: int) -> int:
    """Return the operations on `scores`: the scale 1, softmax 5, a mask at any of the inputs `masks` 1 each, a cap 3."""
    cap = 3 if view.node.attributes.get_float("softcap", 0.0) else 0
    return scores * (6 + sum(map(view.has, masks)) + cap)


def linear_attention_work(view: NodeView) -> OperationCount:
    """Count LinearAttention-27, step by step: each adds a product to the state and reads it, the delta rules read it twice."""
    query, key, value = view.operand(0), view.operand(1), view.operand(2)
    queries, keys = view.integer("q_num_heads"), view.integer("kv_num_heads")
    state = (key[2] // keys) * (value[2] // keys)
    through = 2 if view.text("update_rule", "gated_delta").endswith("delta") else 1
    return OperationCount(query[0] * query[1] * state * (queries + through * keys))


def projected_attention_work(view: NodeView) -> OperationCount:
    """Count com.microsoft::Attention: it projects its input (batch, length, width) to queries, keys and values first."""
    (batch, length, width), weight = view.operand(0), view.operand(1)
    if view.has(4):
        raise NotApplicable("the filled length of an Attention cache is known only in a run")
    out = view.output()[-1]
    projections = batch * length * width * weight[1]
    keys = (weight[1] - out) // 2
    biases = batch * length * weight[1] if view.has(2) else 0
    scores = batch * view.integer("num_heads") * length * length
    return OperationCount(projections + batch * length * length * (keys + out), biases, _on(scores, view, 3, 5))


def quantised_attention_work(view: NodeView) -> OperationCount:
    """Count com.microsoft::QAttention: integer projections of its input (batch, length, width), then attention in floats."""
    (batch, length, width), weight = view.operand(0), view.operand(1)
    out, past = view.output()[-1], view.operand(8)[3] if view.has(8) else 0
    keys = (weight[1] - out) // 2
    pairs = batch * length * (length + past)
    biases = batch * length * weight[1] if view.has(2) else 0
    scored = _on(pairs * view.integer("num_heads"), view, 5)
    return OperationCount(batch * length * width * weight[1] + pairs * (keys + out), biases, scored)


def multi_head_work(view: NodeView) -> OperationCount:
    """Count com.microsoft::MultiHeadAttention of separate queries, keys and values (batch, length, width)."""
    if not (view.has(1) and view.has(2)) or view.has(6):
        raise NotApplicable("packed or cached operands of MultiHeadAttention are not counted")
    query, key, value = view.operand(0), view.operand(1), view.operand(2)
    if not len(query) == len(key) == len(value) == 3:
        raise NotApplicable("packed operands of MultiHeadAttention are not counted")
    biases = query[0] * (query[1] * query[2] + key[1] * (key[2] + value[2])) if view.has(3) else 0
    pairs = query[0] * query[1] * key[1]
    return OperationCount(pairs * (query[2] + value[2]), biases, _on(pairs * view.integer("num_heads"), view, 4, 5))


def grouped_query_work(view: NodeView) -> OperationCount:
    """Count com.microsoft::GroupQueryAttention: every query against all keys that it hands out, past ones included.

    Queries are (batch, length, heads × head), or packed with keys and values. A rotation takes three operations an element.
    """
    out, keys = view.output(0), view.output(1) if len(view.node.outputs) > 1 and view.node.outputs[1].name else None
    heads, groups = view.integer("num_heads"), view.integer("kv_num_heads")
    if keys is None and not view.has(1):
        raise NotApplicable("packed operands of a GroupQueryAttention without present keys are not looked into")
    batch, length, width = out
    scores = batch * heads * length * (view.operand(1)[1] if keys is None else keys[2])
    rotated = batch * length * (width // heads) * (heads + groups) if view.integer("do_rotary", 0) else 0
    scored = _on(scores, view, 10)
    return OperationCount(2 * scores * (width // heads), others=scored + 3 * rotated)


def rotated(view: NodeView, axis: int) -> AxisLinks:
    """RotaryEmbedding: a row of a head is read as a whole, with the cosines and sines of its position."""
    rank = len(view.result)
    if axis == rank - 1:
        raise NotApplicable("it reads the whole of this axis")
    # [batch, heads, tokens, head] or [batch, tokens, heads of a row].
    operand_axis = {0: 0, rank - 2: 1}.get(axis)
    has_places = len(view.inputs) > 3 and view.inputs[3] is not None
    table = None if operand_axis is None or has_places else AxisLink(operand_axis)
    places = (AxisLink(operand_axis) if operand_axis is not None else None,) if has_places else ()
    return links_of(view, AxisLink(axis), table, table, *places)


def rotary_operations(view: NodeView) -> int:
    """Count two products and a sum for each element of the part of a head that is rotated."""
    sizes, part = view.operand(0), view.integer("rotary_embedding_dim", 0)
    head = sizes[-1] if len(sizes) == 4 else sizes[-1] // view.integer("num_heads")
    return 3 * math.prod(sizes) * (part or head) // head


_OTHERS = {"RNN": 1, "GRU": 14, "LSTM": 18}
"""Operations for each hidden element beside the products: sigmoid 4, tanh 1, and those that join gates and state."""


_GATES = {"RNN": 1, "GRU": 3, "LSTM": 4, "DynamicQuantizeLSTM": 4}


def recurrent_work(view: NodeView) -> OperationCount:
    """Count gates × hidden × (input + hidden) products for each step and direction; peepholes add one each."""
    length, batch = view.operand(0)[:2]
    if view.integer("layout", 0):
        length, batch = batch, length
    width, hidden = view.operand(0)[2], view.integer("hidden_size")
    directions = 2 if view.text("direction", "forward") == "bidirectional" else 1
    gates, steps = _GATES[view.node.op_type], length * batch * directions
    peepholes = 3 * hidden if gates == 4 and view.has(7) else 0
    macs = steps * (gates * hidden * (width + hidden) + peepholes)
    usual = not {"activations", "clip"} & set(view.node.attributes)
    others = _OTHERS.get(view.node.op_type) if usual else None
    return OperationCount(
        macs, steps * gates * hidden * 2 if view.has(3) else 0, None if others is None else steps * hidden * others
    )


_ATTENTION = Operator(over=reasons.ALL_ROWS, reads=reasons.LOWERED, work=Products(attention_work), factors=(0, 1))
_RECURRENT = Operator(
    over=reasons.ALL_ROWS,
    reads=reasons.STEPS,
    work=Products(recurrent_work),
    saves=saves.everything,
    state_over=True,
    takes={4: takes.steps_along(0)},
    factors=(0, 1),
    contraction=Left("its products depend on each other step by step"),
)

FAMILY = Family(
    "sequences",
    (
        *_ATTENTION.rows(
            "Attention",
            saves=saves.everything,
            state={1: 4, 2: 5},
            state_grows=True,
            state_over=True,
            contraction=Left("fuse without --lower leaves MatMuls, which are cut"),
        ),
        *_RECURRENT.rows("GRU RNN", state={1: 5}),
        *_RECURRENT.rows("LSTM", state={1: 5, 2: 6}),
        *_ATTENTION.rows(
            "LinearAttention",
            work=Products(linear_attention_work),
            saves=saves.everything,
            contraction=reasons.STEP_BY_STEP,
            factors=None,
        ),
        *_ATTENTION.rows(
            "RotaryEmbedding",
            over=reasons.HALF_ROW,
            reads=rotated,
            work=Operations(rotary_operations),
            saves=saves.rotation,
            factors=None,
        ),
        *without(
            "FlexAttention", reasons.ALL_ROWS, domain="ai.onnx.preview", reads=reasons.LOWERED, work=reasons.NOT_COUNTED
        ),
        *_ATTENTION.rows(
            "Attention",
            domain=MICROSOFT,
            work=Products(projected_attention_work),
            contraction=Left("fuse without --lower leaves MatMuls, which are cut"),
        ),
        *without("AttnLSTM", reasons.ALL_ROWS, domain=MICROSOFT, reads=reasons.STEPS, work=reasons.NOT_COUNTED),
        *without(
            "DecoderMaskedMultiHeadAttention GatedDeltaNet LinearAttention SparseAttention",
            reasons.ALL_ROWS,
            domain=MICROSOFT,
            reads=reasons.LOWERED,
            work=reasons.NOT_COUNTED,
        ),
        *_RECURRENT.rows(
            "DynamicQuantizeLSTM",
            domain=MICROSOFT,
            ports=(QuantisedPort(1, 8, 9), QuantisedPort(2, 10, 11)),
            contraction=reasons.STEP_BY_STEP,
            saves=NOT_STANDARD,
            state_over=False,
            takes={},
            factors=None,
        ),
        *_ATTENTION.rows(
            "EmbedLayerNormalization NGramHashMapping VarlenNGramHashMapping",
            domain=MICROSOFT,
            over=reasons.OTHER_SIZE,
            work=NO_PRODUCTS,
            factors=None,
        ),
        *_ATTENTION.rows(
            "GroupQueryAttention",
            domain=MICROSOFT,
            work=Products(grouped_query_work),
            state={1: 3, 2: 4},
            state_grows=True,
            state_over=True,
            shaped_by=(6,),
            takes={5: takes.token_count(1), 6: takes.token_count(0)},
            quantised=reasons.CACHE_SCALE,
            contraction=Left("fuse without --lower leaves MatMuls, which are cut"),
        ),
        *_ATTENTION.rows(
            "MRotaryEmbedding RotaryEmbedding",
            domain=MICROSOFT,
            over=reasons.HALF_ROW,
            reads=reasons.POSITION,
            work=NO_PRODUCTS,
            factors=None,
        ),
        *_ATTENTION.rows(
            "MultiHeadAttention",
            domain=MICROSOFT,
            work=Products(multi_head_work),
            state={1: 6, 2: 7},
            state_grows=True,
            state_over=True,
            contraction=Left("fuse without --lower leaves MatMuls, which are cut"),
        ),
        *_ATTENTION.rows(
            "QAttention",
            domain=MICROSOFT,
            work=Products(quantised_attention_work),
            ports=(QuantisedPort(0, 3, 6), QuantisedPort(1, 4, 7, axis=-1)),
            contraction=Left(""),
        ),
        *_ATTENTION.rows(
            "QEmbedLayerNormalization",
            domain=MICROSOFT,
            over=reasons.OTHER_SIZE,
            work=NO_PRODUCTS,
            ports=tuple(QuantisedPort(place, place + 6, place + 11) for place in range(2, 7)),
            factors=None,
        ),
    ),
)
