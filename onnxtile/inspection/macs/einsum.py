"""Einsum: one product for each combination of all its indices, where any index is summed."""

from __future__ import annotations

import math

from onnxtile.inspection.work import CountedNode, NotKnown, OperationCount, Rule


def _count(site: CountedNode) -> OperationCount:
    equation = site.text("equation", "").replace(" ", "")
    left, arrow, right = equation.partition("->")
    terms = left.split(",")
    if len(terms) > 2:
        raise NotKnown("the work of an Einsum of more than two operands depends on their order")
    sizes: dict[str, int] = {}
    for position, term in enumerate(terms):
        _bind(term, site.input(position), sizes)
    named = left.replace("...", "")
    kept = right if arrow else "".join(index for index in named if named.count(index) == 1)
    summed = any(index not in kept for index in sizes if index.isalpha())
    combined = math.prod(sizes.values())
    if len(terms) > 1 and summed:
        return OperationCount(combined, others=0)
    # Products that nothing sums, or sums without a product.
    return OperationCount(0, others=combined if len(terms) > 1 or summed else 0)


def _bind(term: str, shape: tuple[int, ...], sizes: dict[str, int]) -> None:
    """Note the size of each index of `term`; those of an ellipsis are counted from the right."""
    before, dots, after = term.partition("...")
    hidden = len(shape) - len(before) - len(after)
    if hidden < 0 or (hidden > 0 and not dots):
        raise NotKnown(f"the Einsum term {term!r} does not fit its operand of rank {len(shape)}")
    indices = [*before, *(str(place) for place in range(hidden, 0, -1)), *after]
    for index, size in zip(indices, shape, strict=True):
        sizes[index] = max(size, sizes.get(index, 1))


RULE = Rule("einsum", frozenset({"Einsum"}), _count)
