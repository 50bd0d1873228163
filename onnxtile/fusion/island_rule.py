"""What operators may be in an island: the table `[island]` of a pattern file."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from onnxtile.system.dataclass import dataclass

if TYPE_CHECKING:
    import pydantic


@dataclass(frozen=True)
class IslandRule:
    """Operators by what they may be in an island; names alone, of the standard domain or onnxruntime's.

    `epilogues` may follow the operator of an island. `elementwise` may compute its operands anew for each reader. `reductions` may make a
    tensor much smaller than their operand. `in_place` may write over an operand. `views` change no element. `attention` may be between the
    products of attention. Where `products` are named, only these begin an island, and only with a constant weight as second operand.
    """

    __pydantic_config__: ClassVar[pydantic.ConfigDict] = {"extra": "forbid"}

    epilogues: frozenset[str]
    in_place: frozenset[str]
    views: frozenset[str]
    elementwise: frozenset[str] = frozenset()
    reductions: frozenset[str] = frozenset()
    attention: frozenset[str] = frozenset()
    products: frozenset[str] = frozenset()
