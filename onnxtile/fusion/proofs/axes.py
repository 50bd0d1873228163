"""Along which axis a body reduces, and constants that have one element for each place along an axis."""

from __future__ import annotations

import math

import numpy as np

from onnxtile.fusion.lowering import Argument, FactsTable, Literal, NotLowered, known_dtype
from onnxtile.fusion.proofs.terms import Poly, atoms
from onnxtile.runtime import Array


def only_axis(form: Poly, reduction: str) -> int:
    """Return the one axis along which `form` reduces, keeping it. Raises NotLowered."""
    found = {base[1:3] for base, _ in atoms(form) if base[0] == reduction}
    if len(found) != 1:
        raise NotLowered(f"it has {len(found)} different sums")
    axes, keepdims = found.pop()
    if not isinstance(axes, tuple) or len(axes) != 1 or keepdims != 1:
        raise NotLowered("it does not reduce along one axis that stays")
    return int(axes[0])


def vector_along(what: str, constant: Argument | Literal, axis: int, rank: int, facts: FactsTable | None) -> Literal:
    """Return a constant that is the same along all axes of a value of `rank` but `axis` as the vector that it is.

    Raises NotLowered where it is no constant, or not the same.
    """
    array, dtype = (
        elements_of(what, constant, facts),
        known_dtype(constant) if isinstance(constant, Argument) else constant.dtype,
    )
    shape = (*(1,) * (rank - array.ndim), *array.shape)
    if len(shape) != rank or math.prod(shape) != shape[axis]:
        raise NotLowered(
            f"its {what} has the shape {list(array.shape)}, not one element for each place along axis {axis}"
        )
    return Literal(np.ascontiguousarray(array).reshape(-1), dtype, what)


def elements_of(what: str, constant: Argument | Literal, facts: FactsTable | None) -> Array:
    """Return the elements of a constant. Raises NotLowered where it is none."""
    if isinstance(constant, Literal):
        return constant.array
    if constant.array is not None:
        return constant.array
    if not constant.constant or constant.value is None or facts is None:
        raise NotLowered(f"its {what} is no constant")
    return facts.elements(constant.value)
