"""Scaled dot-product attention."""

from __future__ import annotations

from onnxtile.fusion.lower.attention import (
    EXCHANGED,
    SWAPPED,
    Heads,
    NewNodes,
    hides_a_row,
    known_dims_or,
    may_be_lowest,
    proved_attention,
)
from onnxtile.fusion.lower.lowering import (
    ORT_DOMAIN,
    CallSite,
    Literal,
    Lowering,
    Made,
    NewNode,
    NotLowered,
    Operand,
    Replacement,
    Setting,
)

_AS_IS = (0, 1, 2, 3)


class ScaledDotProductAttention(Lowering):
    """https://onnx.ai/onnx/operators/onnx__Attention.html, and MultiHeadAttention of onnxruntime's docs/ContribOperators.md."""

    name = "ScaledDotProductAttention"

    def to_onnx(self, site: CallSite) -> Replacement:
        """Return Attention-23 on 4-D operands."""
        heads = proved_attention(site, "Attention")
        if heads.scale < 0:
            raise NotLowered(f"its scale is {heads.scale:.3g}, and onnxruntime's Attention takes no negative one")
        if not heads.guarded and hides_a_row(heads.masks, site.facts):
            raise NotLowered("its mask hides whole rows, whose softmax is NaN and in onnxruntime's Attention 0")
        steps = NewNodes([])
        q, key, v = (
            steps.laid_out(tensor, perm)
            for tensor, perm in ((heads.q, _AS_IS), (heads.k_turned, EXCHANGED), (heads.v, _AS_IS))
        )
        mask, hidden = _bias(steps, heads)
        if mask is not None and may_be_lowest(heads.masks, site.dtype):
            # onnxruntime's kernel takes the lowest number for -inf, and a row of it for one without scores; the standard does not.
            mask = steps.raised(mask, site.dtype)
        settings: dict[str, Setting] = {"scale": heads.scale}
        if heads.widened:
            settings["softmax_precision"] = 1
        if heads.is_flat:
            settings |= {"q_num_heads": 1, "kv_num_heads": 1}
        inputs = (q, key, v, *(() if mask is None else (mask,)))
        made = steps.add(NewNode("Attention", inputs, settings, since=23))
        out = _guarded(steps, heads, made)
        out = out if hidden is None else steps.without(hidden, out, site.dtype)
        out = _turned_back(steps, heads, out)
        return Replacement(tuple(steps.steps), (out,), made.step)

    def to_ort(self, site: CallSite) -> Replacement:
        """Return com.microsoft.MultiHeadAttention, which takes (batch, sequence, heads · size): transpositions around it fall away.

        Where the heads are not so many of each, or it is not known how many, the standard operator, for which there is a kernel too.
        """
        heads = proved_attention(site, "MultiHeadAttention")
        if heads.is_flat:
            return _flat(heads)
        steps = NewNodes([])
        batch, _, rows, columns = heads.dims
        numbers = heads.numbers()
        if numbers is None:
            return self.to_onnx(site)
        count, size, v_size = numbers
        # To (batch, sequence, heads, size): Q and V by exchanging the middle axes, K from (batch, heads, size, sequence).
        turned = (
            (heads.q, SWAPPED, rows, size),
            (heads.k_turned, (0, 3, 1, 2), columns, size),
            (heads.v, SWAPPED, columns, v_size),
        )
        q, k, v = (
            steps.merged(steps.laid_out(tensor, perm), (batch, length), count, width, site)
            for tensor, perm, length, width in turned
        )
        mask, hidden = _bias(steps, heads)
        settings: dict[str, Setting] = {"num_heads": count, "scale": heads.scale}
        inputs = (q, k, v, *(() if mask is None else (None, None, mask)))
        made = steps.add(NewNode("MultiHeadAttention", inputs, settings, ORT_DOMAIN))
        split = steps.reshaped(_guarded(steps, heads, made), 0, 0, count, v_size)
        if hidden is not None:
            split = steps.without(steps.add(NewNode("Transpose", (hidden,), {"perm": SWAPPED})), split, site.dtype)
        # Back to (batch, heads, sequence, size), or with the last two exchanged.
        perm = (0, 2, 3, 1) if heads.turned else SWAPPED
        out = steps.add(NewNode("Transpose", (split,), {"perm": perm}))
        return Replacement(tuple(steps.steps), (out,), made.step)


def _flat(heads: Heads) -> Replacement:
    """Return MultiHeadAttention with one head, which takes (batch, sequence, size) as it is."""
    steps = NewNodes([])
    q, v = (steps.laid_out(tensor, _AS_IS) for tensor in (heads.q, heads.v))
    key = steps.laid_out(heads.k_turned, EXCHANGED)
    mask, _ = _bias(steps, heads)
    settings: dict[str, Setting] = {"num_heads": 1, "scale": heads.scale}
    inputs = (q, key, v, *(() if mask is None else (None, None, mask)))
    made = steps.add(NewNode("MultiHeadAttention", inputs, settings, ORT_DOMAIN))
    out = _turned_back(steps, heads, _guarded(steps, heads, made))
    return Replacement(tuple(steps.steps), (out,), made.step)


def _guarded(steps: NewNodes, heads: Heads, out: Made) -> Made:
    """Return the result `out`, 0 in place of NaN where weights are guarded against it: Q, K and masks that are no numbers give 0."""
    if not heads.guarded:
        return out
    return steps.without(steps.add(NewNode("IsNaN", (out,), since=13)), out, heads.dtype)


def _turned_back(steps: NewNodes, heads: Heads, out: Made) -> Made:
    """Return the result `out` as the site has it: with its last two axes exchanged where V stands before the weights."""
    if not heads.turned:
        return out
    return steps.add(NewNode("Transpose", (out,), {"perm": (0, 2, 1) if heads.is_flat else EXCHANGED}))


def _bias(steps: NewNodes, heads: Heads) -> tuple[Operand, Operand]:
    """Return the masks as both operators take them, and which rows they hide as a whole where that is guarded.

    A guard turns such rows to 0. Here the masks leave these rows alone, and the result is made 0 there: whatever a kernel makes of a row
    that is hidden as a whole is not used.
    """
    operand = _full(steps, heads)
    if operand is None or not heads.may_hide_rows:
        return operand, None
    dtype = heads.dtype
    hidden = steps.hidden_rows(operand, dtype)
    return steps.without(hidden, operand, dtype), hidden


def _full(steps: NewNodes, heads: Heads) -> Operand:
    """Return the masks, summed, as both operators take them in onnxruntime: 4-D, the last two axes in full."""
    operand = steps.mask(heads)
    if operand is None:
        return None
    _, _, rows, columns = heads.dims
    shapes = [known_dims_or(mask.argument) for mask in heads.masks]
    batched = heads.is_flat and max(len(shape) for shape in shapes) == 3
    full = [(*(1,) * (4 - len(shape)), *shape) for shape in shapes]
    wide = any(shape[2] == rows for shape in full), any(shape[3] == columns for shape in full)
    if not all(wide):
        if batched:
            raise NotLowered("its mask is of length 1 along an axis, and has one of batches, but none of heads")
        if not (isinstance(rows, int) and isinstance(columns, int)):
            raise NotLowered("its mask is of length 1 along an axis whose length is not known")
        return steps.add(NewNode("Expand", (operand, Literal.ints(1, 1, rows, columns, hint="shape")), since=8))
    if max(len(shape) for shape in shapes) < 4:
        missing = (1,) if batched else range(4 - max(len(shape) for shape in shapes))
        return steps.add(NewNode("Unsqueeze", (operand, Literal.ints(*missing, hint="axes")), since=13))
    return operand


ATTENTION = ScaledDotProductAttention()
