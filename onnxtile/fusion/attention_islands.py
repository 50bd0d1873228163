"""Quantised attention as a whole: both products, and all between them, as one kernel that stores no scores.

Such a kernel reads Q, K and V as stored, and computes its result row by row (Dao et al., arXiv 2205.14135). All three are live with the
result, which may lie over Q. Node by node, the scores are live with two of them. A site becomes one kernel only where that needs no more
bytes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import onnx_ir as ir

from onnxtile.fusion.island_rule import IslandRule
from onnxtile.model.constants import Constants
from onnxtile.model.quantising import OWN_DOMAINS, dequantises, quantises

SizesOf: TypeAlias = Callable[[ir.Value], Sequence[int] | None]
"""Gives the sizes of a value; None where one is not known."""

_SOFTMAX = frozenset({"QLinearSoftmax", "Softmax"})
_SECOND = {"MatMul": 1, "QLinearMatMul": 3}
"""By product, the place of its second operand."""

_VIEWS = frozenset({"Reshape", "Squeeze", "Unsqueeze"})

_MOST_BETWEEN = 64
"""The largest number of nodes between the products."""


@dataclass(frozen=True)
class AttentionCore:
    """The product of the scores, the nodes between, and the product with V, in the order of the file.

    `over_query` says whether result and Q have one shape.
    """

    scores: ir.Node
    between: tuple[ir.Node, ...]
    context: ir.Node
    over_query: bool

    def products(self) -> tuple[tuple[ir.Node, ir.Value], ...]:
        """Return Q, K and V, each after the product that reads it."""
        scores, context = self.scores, self.context
        read = (scores, 0), (scores, _SECOND[scores.op_type]), (context, _SECOND[context.op_type])
        return tuple((node, value) for node, place in read if (value := node.inputs[place]) is not None)


@dataclass(frozen=True)
class AttentionFinder:
    """Finds attention in one graph; `places` are those of its nodes in the file, `version` that of the standard operators."""

    rule: IslandRule
    constants: Constants
    places: Mapping[ir.Node, int]
    version: int
    sizes_of: SizesOf

    def around(self, softmax: ir.Node) -> AttentionCore | None:
        """Return the attention around `softmax`; None where there is none, or where it might need more bytes as one kernel."""
        if softmax.op_type not in _SOFTMAX or softmax.domain not in OWN_DOMAINS:
            return None
        for scores in self._products_before(softmax):
            between = self._between(scores)
            context = None if between is None or softmax not in between else self._context(between)
            if between is not None and context is not None:
                ordered = sorted(between - {scores}, key=self.places.__getitem__)
                return self._fitting(AttentionCore(scores, tuple(ordered), context, False), softmax)
        return None

    def _products_before(self, softmax: ir.Node) -> Iterator[ir.Node]:
        """Yield the products from which a way leads to `softmax`, the nearest first."""
        seen: dict[ir.Node, None] = {softmax: None}
        for node in (waiting := [softmax]):
            for value in node.inputs:
                maker = None if value is None or value in self.constants else value.producer()
                if maker is None or maker in seen or maker not in self.places:
                    continue
                seen[maker] = None
                if self._multiplies(maker):
                    yield maker
                elif self._may_be_between(maker) and len(waiting) < _MOST_BETWEEN:
                    waiting.append(maker)

    def _between(self, scores: ir.Node) -> set[ir.Node] | None:
        """Return `scores` and all nodes that depend on it, up to the next products; None where others than these depend on it."""
        found = {scores}
        for node in (waiting := [scores]):
            for value in node.outputs:
                if value.is_graph_output():
                    return None
                for reader in {use.node for use in value.uses()} - found:
                    if self._multiplies(reader):
                        continue
                    if not self._may_be_between(reader) or len(found) > _MOST_BETWEEN:
                        return None
                    found.add(reader)
                    waiting.append(reader)
        return found

    def _context(self, between: set[ir.Node]) -> ir.Node | None:
        """Return the only product that reads what `between` makes, as its first operand alone."""
        uses = [use for node in between for value in node.outputs for use in value.uses() if use.node not in between]
        return uses[0].node if len(uses) == 1 and uses[0].idx == 0 else None

    def _multiplies(self, node: ir.Node) -> bool:
        """Return whether `node` is a product of two computed tensors."""
        if node.op_type not in _SECOND or node.domain not in OWN_DOMAINS or node not in self.places:
            return False
        operands = node.inputs[0], node.inputs[_SECOND[node.op_type]]
        return all(value is not None and value not in self.constants for value in operands)

    def _may_be_between(self, node: ir.Node) -> bool:
        if node not in self.places or node.domain not in OWN_DOMAINS:
            return False
        return quantises(node) or dequantises(node) or node.op_type in self.rule.attention

    def _fitting(self, core: AttentionCore, softmax: ir.Node) -> AttentionCore | None:
        """Return `core` where its rows stay rows, and one kernel needs no more bytes than its nodes, in elements of one size."""
        made = core.scores.outputs[0], core.context.outputs[0]
        sizes = [self.sizes_of(value) for value in (*(value for _, value in core.products()), *made)]
        if any(one is None or len(one) < 2 for one in sizes):
            return None
        query, keys, values, scores, result = (one for one in sizes if one is not None)
        if not self._runs_along_rows(softmax, len(scores)):
            return None
        for node in core.between:
            moved = self.sizes_of(node.outputs[0]) if node.op_type in _VIEWS else scores
            if moved is None or list(moved[-2:]) != list(scores[-2:]):
                return None
        over_query = list(query) == list(result)
        first, second, third, middle, last = map(math.prod, (query, keys, values, scores, result))
        whole = first + second + third + (0 if over_query else last)
        if whole > max(first + second + middle, middle + third + last):
            return None
        return AttentionCore(core.scores, core.between, core.context, over_query)

    def _runs_along_rows(self, softmax: ir.Node, rank: int) -> bool:
        sizes = self.sizes_of(softmax.outputs[0])
        default = -1 if self.version >= 13 or softmax.op_type != "Softmax" else 1
        return softmax.attributes.get_int("axis", default) in {-1, (rank if sizes is None else len(sizes)) - 1}
