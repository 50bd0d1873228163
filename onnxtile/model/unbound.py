"""What of a model's input shapes is still to be bound, and the options that bind it."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

import onnx_ir as ir


@dataclass(frozen=True)
class Unbound:
    """`symbols` are the sizes that have a name; `options` bind all there is: by that name, or whole shapes where a size has none."""

    symbols: frozenset[str] = frozenset()
    options: str = ""

    @classmethod
    def of(cls, inputs: Iterable[ir.Value]) -> Unbound:
        """Return what is open in the shapes of `inputs`. A name without a letter, such as "?", is none: several sizes may have it."""
        known = [(value.name or "", value.shape) for value in inputs if value.shape is not None]
        named = {name: sorted(_symbols(shape)) for name, shape in known if not _has_nameless(shape)}
        shapes = [_shape(name, shape) for name, shape in known if _has_nameless(shape)]
        dims = binding(sorted({symbol for symbols in named.values() for symbol in symbols}))
        symbols = frozenset(symbol for _, shape in known for symbol in _symbols(shape))
        return cls(symbols, " ".join(option for option in (dims, *shapes) if option))

    def words(self, dim: object) -> list[str]:
        """Return the symbols and the other words in a size, which may be an expression; none in a number."""
        return self._pattern.findall(dim) if isinstance(dim, str) else []

    def bindable(self, dim: object) -> list[str]:
        """Return the symbols that a size is made of."""
        return [word for word in self.words(dim) if word in self.symbols]

    def covers(self, dim: str) -> bool:
        """Return whether a size is made of symbols, and of nothing else that is not known."""
        words = [word for word in self.words(dim) if not word.isdecimal()]
        return bool(words) and all(word in self.symbols for word in words)

    def once_bound(self, reason: str) -> str:
        """Return `reason`, why something is not known, and the options that may take it away."""
        return f"{reason}; it may be once all is bound with {self.options}" if self.options else reason

    @cached_property
    def _pattern(self) -> re.Pattern[str]:
        # A name may hold dots and the like, as in p2o.DynamicDimension.0.
        names = "".join(f"{re.escape(name)}|" for name in sorted(self.symbols, key=len, reverse=True))
        return re.compile(rf"(?<!\w)(?:{names}\w+)(?!\w)")


def binding(symbols: Iterable[str]) -> str:
    """Return the options that bind `symbols`."""
    return " ".join(f"--dim {shlex.quote(f'{symbol}=N')}" for symbol in dict.fromkeys(symbols))


def _symbols(shape: ir.Shape) -> list[str]:
    names = [dim.value or "" for dim in shape if isinstance(dim, ir.SymbolicDim)]
    return [name for name in names if re.search(r"\w", name)]


def _has_nameless(shape: ir.Shape) -> bool:
    return len(_symbols(shape)) < sum(isinstance(dim, ir.SymbolicDim) for dim in shape)


def _shape(name: str, shape: ir.Shape) -> str:
    sizes = "x".join(str(dim) if isinstance(dim, int) else "N" for dim in shape)
    return f"--shape {shlex.quote(f'{name}={sizes}')}"
