"""What the hardware can take in one matrix product."""

from __future__ import annotations

from dataclasses import dataclass

from onnxtile.errors import UsageError

LARGEST = 2**31 - 1
"""Above this a bound is a slip of the keyboard: no hardware multiplies matrices of that size, and no tensor axis reaches it."""


@dataclass(frozen=True)
class Limits:
    """Upper bounds on the sizes of one product, (M × K) times (K × N), in elements; None where an axis has no bound."""

    m: int | None = None
    k: int | None = None
    n: int | None = None

    def __post_init__(self) -> None:
        for axis, bound in (("m", self.m), ("k", self.k), ("n", self.n)):
            if bound is not None:
                _require_bound(bound, f"max-{axis}")

    @classmethod
    def of(
        cls,
        *,
        max: int | None = None,
        m: int | None = None,
        k: int | None = None,
        n: int | None = None,
    ) -> Limits:
        """Return the limits with the bound `max` on every axis that has none of its own.

        Raises UsageError for a bound that is no whole number, is below 1, or is absurdly large, and where there is none at all.
        """
        if max is not None:
            _require_bound(max, "max")
        if max is m is k is n is None:
            raise UsageError("no limit is given", hint="say --max 64, or one of --max-m, --max-k and --max-n")
        return cls(*(max if bound is None else bound for bound in (m, k, n)))


def _require_bound(bound: object, option: str) -> None:
    if not isinstance(bound, int) or isinstance(bound, bool):
        raise UsageError(f"--{option} {bound} is not a whole number")
    if bound < 1:
        raise UsageError(f"--{option} {bound}: a product has at least one row and one column", hint="give 1 or more")
    if bound > LARGEST:
        raise UsageError(f"--{option} {bound} is beyond any tensor's size", hint=f"{LARGEST} is the most")
