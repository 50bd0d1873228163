"""The operands that operators choose from a scope."""

from __future__ import annotations

from collections.abc import Callable

from tests.random_graphs.scope import FLOAT, HALF, Scope, Tensor

Step = Callable[[Scope], object]
MOST = 4096
"""Elements of a tensor, at most."""


def is_float(one: Tensor) -> bool:
    """Return whether kernels compute with it."""
    return one.dtype in (FLOAT, HALF)


def real(scope: Scope, rank: int = 0, most: int = 9, *, static: bool = False) -> Tensor | None:
    """Return a float tensor of at least and at most so many axes."""
    return scope.pick(lambda t: is_float(t) and rank <= t.rank <= most and (t.is_static or not static))


def picture(scope: Scope, least: int = 1) -> Tensor | None:
    """Return a float tensor of four axes, of which only the first may be open, with `least` rows and columns at least."""

    def fits(one: Tensor) -> bool:
        known = [dim for dim in one.dims[1:] if isinstance(dim, int)]
        return one.dtype == FLOAT and one.rank == 4 and len(known) == 3 and min(known[1:]) >= least

    return scope.pick(fits)
