"""A plan in words: sizes in bytes, states, formulas, the headline of a picture, and the proof of the size."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from onnxtile.system.dataclass import dataclass

if TYPE_CHECKING:
    from onnxtile.report.format import PlanJson

_UNITS = ("bytes", "KiB", "MiB", "GiB", "TiB")


def unit_of(size: int) -> tuple[int, str]:
    """Return the largest unit that is not above `size` bytes: its bytes and its name."""
    power = min(max(size.bit_length() - 1, 0) // 10, len(_UNITS) - 1)
    return 1 << 10 * power, _UNITS[power]


def readable(size: int) -> str:
    """Return `size` bytes with three digits: "512 bytes", "6.89 MiB"."""
    unit, name = unit_of(size)
    digits = 0 if size % unit == 0 else max(0, 3 - len(str(size // unit)))
    # Half of the last digit goes up, as in the page.
    value = math.floor(size / unit * 10**digits + 0.5) / 10**digits
    return f"{value:,.{digits}f} {name}"


# The states of a plan in words.


def state_in_words(plan: Mapping[str, Any]) -> str | None:
    """Return the number of states kept in an arena and their bytes; None without any."""
    kept = [state for state in plan.get("states") or () if is_kept(state)]
    if not kept:
        return None
    copied = sum(state["copied"] for state in kept)
    after = f", {readable(copied)} copied after each run" if copied else ""
    return f"{len(kept):,} kept in {readable(sum(state['size'] for state in kept))}{after}"


def is_kept(state: Mapping[str, Any]) -> bool:
    """Return whether the plan keeps `state` in an arena; others are only listed."""
    return state.get("arena") is not None


# Formulas of sizes as people write them.


def in_words(formula: str) -> str:
    """Return an expression of Python as people write it.

    >>> in_words("1024*batch*seq**2 + 64")
    '1,024·batch·seq² + 64'
    """
    text = re.sub(r"\*\*(\d+)", lambda power: power[1].translate(_RAISED), formula)
    return re.sub(r"\b\d{4,}\b", lambda number: f"{int(number[0]):,}", text.replace("*", "·"))


_RAISED = str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹")


def ranges_in_words(ranges: Mapping[str, tuple[int, int]]) -> str:
    """Return the ranges of dimensions: "batch 1 to 4, seq 1 to 64"."""
    return ", ".join(f"{name} {low:,} to {high:,}" for name, (low, high) in ranges.items())


def arena_in_words(formula: Mapping[str, Any]) -> str:
    """Return the bytes of an arena at any size: the pieces of its scaled offsets, or of fixed ones where there are no scaled offsets."""
    return " or ".join(map(in_words, (formula["scaled"] or formula["fixed"])["pieces"]))


# The headline of a plan: the model, its inputs, the size of the arena, the savings by sharing, and the proof.

_INPUTS = 3
"""Inputs that are named."""
_ELEMENTS = {"FLOAT": "float32", "DOUBLE": "float64"}


@dataclass(frozen=True)
class Headline:
    """The title of a picture, and the figures below it, each a label with its text."""

    title: str
    inputs: str
    figures: tuple[tuple[str, str], ...]


def headline(plan: PlanJson, title: str, before: PlanJson | None = None) -> Headline:
    """Return the headline of `plan`; `title` is used where the plan names no model. Figures that a plan does not have are left out.

    With the plan `before`, which is in the same picture, the head says what became of the arena: "5.74 MiB → 490 KiB". All other
    figures are those of `plan`, the proof too: a model that is cut otherwise may take less.
    """
    inputs = plan.get("inputs") or ()
    named = [f"{tensor['name']} {tensor_type(tensor)}" for tensor in inputs[:_INPUTS]]
    more = [f"{len(inputs) - _INPUTS} more"] if len(inputs) > _INPUTS else []
    figures = list(_figures(plan))
    if before is not None:
        label, text = figures[0]
        figures[0] = (label, f"{_sizes(before, limits=False)} → {text}")
        figures[1:] = [(f"{label}, after", text) for label, text in figures[1:]]
    return Headline(plan.get("model") or title, ", ".join((*named, *more)), tuple(figures))


def element(dtype: str | None) -> str:
    """Return an element type as numpy names it, "float32"; empty where it is not known."""
    return _ELEMENTS.get(dtype or "", (dtype or "").lower())


def tensor_type(row: Mapping[str, Any]) -> str:
    """Return element type and shape of a tensor, "float32 1×3×224×224", as far as they are known."""
    shape = row.get("shape")
    sizes = "" if shape is None else "×".join(map(str, shape)) or "scalar"
    return " ".join(filter(None, (element(row.get("dtype")), sizes)))


def _figures(plan: PlanJson) -> Iterator[tuple[str, str]]:
    size = sum(arena["size"] for arena in plan["arenas"])
    ranges = plan.get("ranges")
    name = "arenas" if len(plan["arenas"]) > 1 else "arena"
    yield f"{name} at the largest sizes" if ranges else name, _sizes(plan)
    if ranges:
        yield "sizes", f"all of {ranges_in_words(ranges)}"
    formulas = plan.get("formulas") or ()
    for formula in formulas:
        text = arena_in_words(formula)
        of = f" of {formula['name']}" if len(formulas) > 1 else ""
        yield f"bytes{of} at all sizes{', the largest of' if ' or ' in text else ''}", text
    held = [row["bytes"] for row in plan.get("insides") or () if not row["in_arena"] and row["bytes"] is not None]
    if held:
        yield "inside one meta-op, not in the arena", f"up to {readable(max(held))}"
    unshared = plan.get("activation_bytes")
    if unshared is not None and plan.get("schedule"):
        yield "activations without sharing", readable(unshared)
        if size < unshared:
            yield "saved by sharing", f"{(unshared - size) / unshared:.1%}"
    state = state_in_words(plan)
    if state is not None:
        yield "state", state
    proof = proved(plan)
    if proof is not None:
        yield "proof", proof


def _sizes(plan: PlanJson, *, limits: bool = True) -> str:
    """Return the size of each arena of `plan`, and with `limits` its capacity; several have their names."""
    texts = []
    for arena in plan["arenas"]:
        name = f"{arena['name']} " if len(plan["arenas"]) > 1 else ""
        capacity = arena.get("capacity") if limits else None
        limit = "" if capacity is None else f" of {readable(capacity)}"
        texts.append(f"{name}{readable(arena['size'])}{limit}")
    return ", ".join(texts) or readable(0)


def proved(plan: PlanJson) -> str | None:
    """Return the proof of the size of the arenas in words; None where the plan has none.

    A share of the bound is rounded up, so that "within" is true. The bound is that of one memory: of several, no share is said.
    """
    if plan.get("unplanned"):
        count = len(plan["unplanned"])
        return f"none: {count:,} tensor{'s' * (count > 1)} unplanned"
    if plan.get("optimal"):
        return f"smallest {smallest_of(plan)}"
    bound, gap = plan.get("lower_bound"), plan.get("gap")
    if not bound or gap is None or len(plan["arenas"]) > 1:
        return None
    return f"within {math.ceil(gap / bound * 1000) / 10:.1f}% of the lower bound"


def smallest_of(plan: PlanJson) -> str:
    """Return in words the plans among which an optimal one is the smallest."""
    if plan.get("optimal_over") == "any order":
        return "of any order"
    if not plan.get("schedule"):
        return "for these live ranges"
    if plan.get("order") == "any":
        return "that holds in every order, with these aliases"
    return "of this order, with these aliases"
