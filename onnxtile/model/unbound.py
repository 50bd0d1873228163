"""Open dimensions of a model's inputs, and the options that give them sizes."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

import onnx_ir as ir

from onnxtile.errors import ModelError


@dataclass(frozen=True)
class Unbound:
    """`symbols` are the sizes that have a name; `options` bind all there is: by that name, or whole shapes where a size has none."""

    symbols: frozenset[str] = frozenset()
    options: str = ""

    @classmethod
    def of(cls, inputs: Iterable[ir.Value]) -> Unbound:
        """Return the open dimensions of `inputs`. A name without a letter or digit, such as "?", counts as no name."""
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


def missing_sizes(inputs: Iterable[ir.Value]) -> ModelError:
    """Return the error to raise where `inputs` need sizes. It names each open dimension; its hint is a line to paste."""
    values = list(inputs)
    listed = ", ".join(f"{value.name!r} {_listed(value.shape)}" for value in values)
    return ModelError(f"sizes of inputs are not known: {listed}", hint=f"give them, for example {example(values)}")


def example(inputs: Iterable[ir.Value]) -> str:
    """Return options, ready to paste, that give `inputs` sizes: each dimension of one name the same, each shape of the right rank."""
    values = list(inputs)
    named: dict[str, int] = {}
    for value in values:
        for axis, dim in enumerate(value.shape or ()):
            if _name(dim):
                named.setdefault(_name(dim), _example_size(value, axis))
    shapes = [value for value in values if value.shape is None or _has_nameless(value.shape)]
    bound = {_name(dim) for value in shapes for dim in value.shape or ()}
    dims = [f"--dim {shlex.quote(f'{symbol}={size}')}" for symbol, size in named.items() if symbol not in bound]
    return " ".join([*dims, *(f"--shape {shlex.quote(_example_shape(value, named))}" for value in shapes)])


def _example_shape(value: ir.Value, named: Mapping[str, int]) -> str:
    if value.shape is None:
        return f"{value.name}=SIZES"
    known = enumerate(value.shape)
    sizes = [dim if isinstance(dim, int) else named.get(_name(dim)) or _example_size(value, at) for at, dim in known]
    return f"{value.name}={'x'.join(map(str, sizes))}"


def _example_size(value: ir.Value, axis: int) -> int:
    """Return a size that is usual: a batch of 1, an image of 224, 64 tokens, 512 samples of a sound."""
    assert value.shape is not None
    rank = len(value.shape)
    is_last = axis == rank - 1
    if axis == 0 or (not is_last and not _name(value.shape[axis]) and rank < 4):
        return 1
    if rank == 4 and axis > 1:
        return 224
    return 512 if is_last and value.dtype is not None and value.dtype.is_floating_point() else 64


def _name(dim: int | ir.SymbolicDim) -> str:
    """Return the name of a dimension; empty for a number, and for a name without a letter or digit, such as "?"."""
    name = "" if isinstance(dim, int) else dim.value or ""
    return name if re.search(r"\w", name) else ""


def _listed(shape: ir.Shape | None) -> str:
    if shape is None:
        return "of any rank"
    return f"[{', '.join(str(dim) if isinstance(dim, int) else _name(dim) or '?' for dim in shape)}]"


def binding(symbols: Iterable[str]) -> str:
    """Return the options that bind `symbols`."""
    return " ".join(f"--dim {shlex.quote(f'{symbol}=N')}" for symbol in dict.fromkeys(symbols))


def _symbols(shape: ir.Shape) -> list[str]:
    return [name for name in map(_name, shape) if name]


def _has_nameless(shape: ir.Shape) -> bool:
    return len(_symbols(shape)) < sum(isinstance(dim, ir.SymbolicDim) for dim in shape)


def _shape(name: str, shape: ir.Shape) -> str:
    sizes = "x".join(str(dim) if isinstance(dim, int) else "N" for dim in shape)
    return f"--shape {shlex.quote(f'{name}={sizes}')}"
