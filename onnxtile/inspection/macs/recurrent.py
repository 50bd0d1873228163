"""Recurrent layers: at each step and direction, gates × hidden × (input + hidden) products; peepholes add one each."""

from __future__ import annotations

from onnxtile.inspection.work import CountedNode, OperationCount, Rule

_OTHERS = {"RNN": 1, "GRU": 14, "LSTM": 18}
"""Operations for each hidden element beside the products: sigmoid 4, tanh 1, and those that join gates and state."""
_GATES = {"RNN": 1, "GRU": 3, "LSTM": 4, "DynamicQuantizeLSTM": 4}


def _count(site: CountedNode) -> OperationCount:
    length, batch = site.input(0)[:2]
    if site.number("layout", 0):
        length, batch = batch, length
    width, hidden = site.input(0)[2], site.number("hidden_size")
    directions = 2 if site.text("direction", "forward") == "bidirectional" else 1
    gates, steps = _GATES[site.node.op_type], length * batch * directions
    peepholes = 3 * hidden if gates == 4 and site.has(7) else 0
    macs = steps * (gates * hidden * (width + hidden) + peepholes)
    usual = not {"activations", "clip"} & set(site.node.attributes)
    others = _OTHERS.get(site.node.op_type) if usual else None
    return OperationCount(
        macs, steps * gates * hidden * 2 if site.has(3) else 0, None if others is None else steps * hidden * others
    )


RULE = Rule("recurrent", frozenset({"RNN", "GRU", "LSTM", "com.microsoft::DynamicQuantizeLSTM"}), _count)
