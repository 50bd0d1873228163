"""The limits of the hardware on one tile."""

from __future__ import annotations

from dataclasses import dataclass, replace

from onnxtile.system.errors import UsageError

LARGEST = 2**31 - 1
"""Above this a bound is a slip of the keyboard: no hardware multiplies matrices of that size, and no tensor axis reaches it."""
MOST_MEMORY = 2**50
"""In bytes; above this a memory is a slip of the keyboard too."""


@dataclass(frozen=True)
class WindowBounds:
    """Further bounds on one tile of a convolution: output rows and columns, and input and output channels of all its groups."""

    rows: int | None = None
    columns: int | None = None
    channels: int | None = None
    filters: int | None = None

    def __post_init__(self) -> None:
        for name, bound in vars(self).items():
            if bound is not None:
                _require_bound(bound, f"max-{name}")

    @property
    def asks(self) -> bool:
        """Whether there is any bound."""
        return any(bound is not None for bound in vars(self).values())

    def over(self, other: WindowBounds) -> WindowBounds:
        """Return these bounds, and the bounds of `other` where these have none."""
        return WindowBounds(
            **{name: other_ if (ours := getattr(self, name)) is None else ours for name, other_ in vars(other).items()}
        )


@dataclass(frozen=True)
class Limits:
    """The limits on one tile, (M × K) times (K × N); None means no limit.

    `m`, `k`, `n` bound the sizes in elements. Stretches of M, K and N are multiples of `multiples`, except the last one of an axis.
    With `pad` the last one is filled up with zeros: an axis with a bound is cut into stretches of exactly that size, another axis into
    multiples. `largest_elements` and `largest_bytes` bound each block that a tile reads or makes, `memory` all blocks of one tile
    together, in bytes; all count the whole batch. `dtypes` are the element types of factors that the hardware takes, with numpy's names.
    `window` requests that convolutions are cut, and bounds their tiles; None leaves them whole. `operators` are the limits of single
    operators.
    """

    m: int | None = None
    k: int | None = None
    n: int | None = None
    multiples: tuple[int, int, int] = (1, 1, 1)
    largest_elements: int | None = None
    largest_bytes: int | None = None
    memory: int | None = None
    dtypes: frozenset[str] | None = None
    pad: bool = False
    window: WindowBounds | None = None
    operators: tuple[tuple[str, Limits], ...] = ()

    def __post_init__(self) -> None:
        for axis, bound in zip("mkn", self.bounds, strict=True):
            if bound is not None:
                _require_bound(bound, f"max-{axis}")
        if self.memory is not None:
            _require_bound(self.memory, "memory", MOST_MEMORY)

    @classmethod
    def of(
        cls,
        *,
        max: int | None = None,
        m: int | None = None,
        k: int | None = None,
        n: int | None = None,
        memory: int | None = None,
        window: WindowBounds | None = None,
        base: Limits | None = None,
    ) -> Limits:
        """Return the limits with the bound `max` on every axis that has none of its own; where nothing is said, `base` holds.

        A `window` has convolutions cut within the same limits, and its own.

        Raises UsageError for a bound that is not a whole number, below 1, or larger than any tensor, and where no bound is given.
        """
        if max is not None:
            _require_bound(max, "max")
        if base is None and max is m is k is n is memory is None and not (window and window.asks):
            raise UsageError(
                "no limit is given", hint="give --max 64, or one of --max-m, --max-k, --max-n, --memory and --target"
            )
        m, k, n = (max if bound is None else bound for bound in (m, k, n))
        return (base or cls())._but((m, k, n), memory, window)

    def _but(self, bounds: tuple[int | None, ...], memory: int | None, window: WindowBounds | None) -> Limits:
        m, k, n = (ours if theirs is None else theirs for theirs, ours in zip(bounds, self.bounds, strict=True))
        for axis, bound, multiple in zip("mkn", (m, k, n), self.multiples, strict=True):
            if bound is not None and isinstance(bound, int) and bound % multiple:
                raise UsageError(f"--max-{axis} {bound} is not a multiple of {multiple}, as the limits file asks")
        operators = tuple((name, limits._but(bounds, memory, window)) for name, limits in self.operators)
        if window is not None and self.window is not None:
            window = window.over(self.window)
        return replace(
            self, m=m, k=k, n=n, memory=self.memory if memory is None else memory, window=window or self.window,
            operators=operators,
        )  # fmt: skip

    @property
    def bounds(self) -> tuple[int | None, int | None, int | None]:
        """The bounds on M, K and N."""
        return self.m, self.k, self.n

    @property
    def asks_for_choice(self) -> bool:
        """Whether many tile shapes meet the limits, of which the one that moves the fewest bytes is to be found."""
        return not (self.memory is self.largest_elements is self.largest_bytes is None)

    def of_operator(self, name: str) -> Limits:
        """Return the limits that hold for the operator `name`."""
        return next((limits for operator, limits in self.operators if operator == name), self)

    def needs_size(self, axis: int) -> bool:
        """Return whether the size along M (0), K (1) or N (2) must be known."""
        padded = self.pad and self.multiples[axis] > 1
        return self.bounds[axis] is not None or self.asks_for_choice or padded


def _require_bound(bound: object, option: str, most: int = LARGEST) -> None:
    if not isinstance(bound, int) or isinstance(bound, bool):
        raise UsageError(f"--{option} {bound} is not a whole number")
    if bound < 1:
        what = (
            "a tile holds at least one byte" if option == "memory" else "a product has at least one row and one column"
        )
        raise UsageError(f"--{option} {bound}: {what}", hint="give 1 or more")
    if bound > most:
        raise UsageError(f"--{option} {bound} is beyond any tensor's size", hint=f"{most} is the most")
