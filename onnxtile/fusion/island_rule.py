"""The rule of quantised islands in a pattern file."""

from __future__ import annotations

import pydantic


class IslandRule(pydantic.BaseModel):
    """Operators by what they may be in an island; names alone, of the standard domain or onnxruntime's.

    `epilogues` may follow the operator of an island, `elementwise` compute its operands anew for each reader, `reductions` make
    a tensor much smaller than their operand, `in_place` write over an operand, `views` change no element, `attention` be between the
    products of attention. Where `products` are
    named, only these begin an island, and only with a constant weight as second operand.
    """

    model_config = pydantic.ConfigDict(extra="forbid", frozen=True)

    epilogues: frozenset[str]
    elementwise: frozenset[str] = frozenset()
    reductions: frozenset[str] = frozenset()
    in_place: frozenset[str]
    views: frozenset[str]
    attention: frozenset[str] = frozenset()
    products: frozenset[str] = frozenset()
