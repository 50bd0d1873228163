"""plan --check: a plan, whoever made it, is judged against its model."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

from onnxtile.check.audit import Audit, check_ranges, judged
from onnxtile.check.graph import GraphModel
from onnxtile.check.movement import with_claimed_copies
from onnxtile.check.ranges import listed, wrong_ranges
from onnxtile.check.reading import RangedValue, from_marks, plain_model, ranged_values
from onnxtile.declare.plan_document import PlanDocument, PlanFailure, ReadPlan, from_json
from onnxtile.declare.verb import Outcome, declared, narrowed
from onnxtile.model.binding import bind, bind_leading, formula_names, free_inputs, rename_symbols, symbols
from onnxtile.model.constants import Constants
from onnxtile.model.feeds import Wanted, given_shapes, read_inputs
from onnxtile.model.load import digest, load
from onnxtile.shapes.resolve import resolve
from onnxtile.system.errors import UsageError, about_options
from onnxtile.system.files import require_readable
from onnxtile.system.interpreter import cycles_freed
from onnxtile.verbs.flows.kernels import KernelChoice, choose_kernels
from onnxtile.verbs.plan import CheckOptions, PlanCommand


@declared(CheckOptions)
def check_plan(options: CheckOptions) -> Audit:
    """Return the faults of `plan`, a plan of `model`.

    Dimensions and upper bounds are those of the plan, beside `dims` and `shapes`. `inputs` are for models that are
    run where no inference knows a shape. Raises ModelError, and UsageError where `plan` is none.
    """
    progress, model, plan = options.progress, options.model, options.plan
    inputs, ranges = options.input_file, options.input_ranges
    _require_no_ranges(options)
    progress("reading the plan")
    claims, surplus = _read(plan) if isinstance(plan, Path | str) else ReadPlan(plan, ())
    progress("reading the model")
    checked = load(model)
    given = None if inputs is None else read_inputs(inputs, checked)
    open_ = set(symbols(free_inputs(checked)))
    wrong, remarks = [*_unknown(claims, open_)], []
    dims = {name: size for name, size in claims.dims.items() if name in open_}
    words: dict[str, str] = {}
    if claims.ranges:
        words = formula_names(checked)
        ranged = {name for name in dims if words.get(name, name) in claims.ranges or name in claims.sums}
        dims = {name: size for name, size in dims.items() if name not in ranged}
    wrong += wrong_ranges(claims, words)
    if wrong:
        return Audit.refused(*wrong)
    if surplus:
        reasons = (f"{name}: the model shows no such field, so that nothing can check it" for name in surplus)
        return Audit.refused(*map(PlanFailure, reasons))
    bind(checked, {**dims, **options.unranged_dims}, {**given_shapes(given or {}), **options.whole_shapes})
    if not claims.ranges:
        bind_leading(checked)
    islands = choose_kernels(checked, KernelChoice.NODES if claims.kernels is None else KernelChoice.ISLANDS)
    # A planned model has its islands already.
    if claims.outside is not None and claims.kernels not in {None, islands}:
        remarks.append(
            PlanFailure(f"kernels are {claims.kernels and vars(claims.kernels)}, not {islands and vars(islands)}")
        )
    largest = {**claims.bounds, **options.dim_bounds} or None
    wanted = Wanted(given, ranges)
    if claims.ranges:
        rename_symbols(checked, {**claims.sums, **words})

        def at(sizes: Mapping[str, int]) -> GraphModel:
            progress(f"checking the plan at {listed(sizes)}")
            bound = checked.clone()
            bind(bound, sizes, {}, least=0)
            shapes = resolve(bound, run=True, wanted=wanted, bounds=largest)
            return GraphModel(*plain_model(bound, shapes, Constants(bound)))

        def over() -> Mapping[str, RangedValue]:
            progress("checking the plan over its ranges")
            shapes = resolve(checked, run=True, wanted=wanted, bounds=largest, ranges=claims.ranges)
            return ranged_values(checked, shapes)

        return check_ranges(claims, at, over, digest(model)).with_failures(remarks)
    progress("inferring shapes")
    known = resolve(checked, run=True, wanted=wanted, bounds=largest)
    progress("checking the plan")
    plain = plain_model(checked, known, Constants(checked))
    is_copied = claims.movement is not None and claims.movement.copies is not None
    copied = with_claimed_copies(plain, claims) if is_copied else plain
    if isinstance(copied, PlanFailure):
        return Audit.refused(copied)
    return judged(GraphModel(*copied), claims, digest(model)).with_failures(remarks)


def run(options: PlanCommand) -> Outcome:
    """Do what the command `plan --check` asks for."""
    audit = check_plan.from_options(narrowed(CheckOptions, options, plan=options.check))
    return Outcome(audit, "check", reason=None if audit.sound else "the plan is wrong")


def _require_no_ranges(options: CheckOptions) -> None:
    """Raise UsageError for a range of sizes: a plan says itself over which ranges it holds."""
    for name, ranges in (("dims", options.dim_ranges), ("shapes", options.shape_ranges)):
        if ranges:
            message = f"{{{name}}} has a range, and a plan is checked at the sizes that it says"
            raise about_options(message, hint=f"leave {{{name}}} out")


def _unknown(claims: PlanDocument, known: Collection[str]) -> Iterator[PlanFailure]:
    """Yield the dimensions of `claims` that are not in `known`, those of the model."""
    for kind, names in (("dims", claims.dims), ("sums", claims.sums)):
        for name in names:
            if name not in known:
                yield PlanFailure(f"{kind}: the model has no open dimension {name!r}")


@cycles_freed()
def _read(file: Path | str) -> ReadPlan:
    path = Path(file)
    if path.suffix.lower() != ".json":
        return ReadPlan(from_marks(load(path), str(path)), ())
    require_readable(path, UsageError)
    try:
        data = path.read_bytes()
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror or error}") from error
    return from_json(data, str(path))
