"""Types and checks that all verbs share, and the writing of a model."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import onnx_ir as ir

from onnxtile.model import save as files
from onnxtile.model.load import Source
from onnxtile.model.stream import Draft
from onnxtile.shapes.resolve import Shapes
from onnxtile.system.errors import NAME_ONLY, Mismatch, UsageError
from onnxtile.verification.rounding import resolved
from onnxtile.verification.trials import Verdict

if TYPE_CHECKING:
    from onnxtile.arena.run import ArenaVerdict
    from onnxtile.arena.state_run import StateVerdict


BoundDims: TypeAlias = Mapping[str, int]
"""Sizes of symbolic dimensions, by name."""
InputShapes: TypeAlias = Mapping[str, tuple[int, ...]]
"""Whole shapes of inputs, by name."""


def agreeing(verdict: Verdict, what: str) -> Verdict:
    """Return `verdict`, or raise Mismatch that names the worst output, or the first where none could be compared."""
    if verdict.equal:
        return verdict
    if verdict.is_empty:
        raise Mismatch(
            f"no output of {what} could be compared: {nothing_compared(verdict)}",
            hint="nothing was written; --no-verify writes the model without comparing",
        )
    worst = max((output for output in verdict.outputs if not output.equal), key=lambda output: output.max_abs)
    raise Mismatch(
        f"{what} does not compute what the original does: {worst.name!r} is off by {worst.max_abs:.3g}"
        + (f" ({worst.reason})" if worst.reason else ""),
        hint="nothing was written; please report it with the model",
    )


def nothing_compared(verdict: Verdict) -> str:
    """Return why the first output was not compared."""
    name, reason = next(iter(verdict.not_compared.items()))
    return f"{name!r}: {reason}"


def not_both() -> UsageError:
    """Return the error for inputs that are given, and ranges of random ones besides."""
    message = "{inputs} are given, so nothing is drawn from {ranges}"
    return UsageError(message, hint="leave out one of the two", given={"inputs": NAME_ONLY, "ranges": NAME_ONLY})


def require_sites(failed: Iterable[str], hints: Mapping[str, str] | None = None) -> None:
    """Raise Mismatch where any site `failed` when it ran alone; `hints` has what helps, by the name of the site."""
    names = list(failed)
    if names:
        hint = (hints or {}).get(names[0], "please report it")
        raise Mismatch(f"{names[0]!r} run alone does not compute what it replaces", hint=f"nothing was written; {hint}")


def require_equal(verdict: ArenaVerdict | StateVerdict) -> None:
    """Raise Mismatch where a run inside the arena differs from the plain run."""
    if not verdict.equal:
        where = f": {verdict.differing!r} at step {verdict.step}" if verdict.differing else ""
        raise Mismatch(
            f"the run inside the arena differs from the plain run{where}", hint="please report it with the model"
        )


def bound_shapes(model: ir.Model, shapes: Callable[[], Shapes], bound: ir.Model) -> Shapes:
    """Return the shapes of `bound`, the form of `model` with all inputs bound: the `shapes` of `model` where it has no open dimensions."""
    return shapes() if bound is model else resolved(bound)


# Write a model, whole or not at all.


def save(model: ir.Model | Draft, path: str | Path, *, source: Source | None = None, force: bool = False) -> None:
    """Write `model`, whole or not at all. Raises UsageError where `path` is the `source` file and `force` is off."""
    origin = Path(source) if isinstance(source, str | Path) else None
    files.save(model, Path(path), source=origin, force=force)
