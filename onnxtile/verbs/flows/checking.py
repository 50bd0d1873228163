"""Check a plan against its model."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from onnxtile.errors import UsageError
from onnxtile.model.constants import Constants
from onnxtile.model.dims import bind, free_inputs, symbols
from onnxtile.model.given import given_shapes, read_inputs
from onnxtile.model.load import digest, load
from onnxtile.model.shapes import resolve
from onnxtile.model.wanted import Wanted
from onnxtile.verbs.flows.kernels import KernelChoice, choose_kernels

if TYPE_CHECKING:
    from onnxtile.planning.proof.published.audit import Audit
    from onnxtile.planning.proof.published.claims import Claims
    from onnxtile.verbs.plan import CheckOptions


def check_plan(options: CheckOptions) -> Audit:
    """Check a plan as `onnxtile.check_plan` says."""
    from onnxtile.planning.proof.failure import PlanFailure
    from onnxtile.planning.proof.published.audit import Audit, check
    from onnxtile.planning.proof.published.claims import Claims
    from onnxtile.planning.proof.published.copied_model import with_claimed_copies

    progress, model, plan = options.progress, options.model, options.plan
    inputs, ranges = options.inputs, options.ranges
    progress("reading the plan")
    claims = _read(plan) if isinstance(plan, Path | str) else Claims.of(plan)
    progress("reading the model")
    checked = load(model)
    given = None if inputs is None else read_inputs(inputs, checked)
    open_ = set(symbols(free_inputs(checked)))
    told = {name: size for name, size in claims.dims.items() if name in open_}
    bind(checked, {**told, **options.single_dims}, {**given_shapes(given or {}), **options.whole_shapes})
    choose_kernels(checked, KernelChoice.NODES if claims.kernels is None else KernelChoice.ISLANDS)
    progress("inferring shapes")
    largest = {**claims.bounds, **(options.bounds or {})} or None
    known = resolve(checked, run=True, wanted=Wanted(given, ranges), bounds=largest)
    progress("checking the plan")
    if claims.movement is not None and claims.movement.copies is not None:
        copied = with_claimed_copies(checked, claims, known)
        if isinstance(copied, PlanFailure):
            return Audit.refused(copied)
        known = copied
    return check(checked, claims, known, Constants(checked), digest(model))


def _read(file: Path | str) -> Claims:
    from onnxtile.planning.proof.published.reading import from_json, from_marks

    path = Path(file)
    if path.suffix.lower() != ".json":
        return from_marks(load(path), str(path))
    try:
        data = path.read_bytes()
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror or error}") from error
    return from_json(data, str(path))
