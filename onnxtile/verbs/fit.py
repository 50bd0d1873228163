"""fit: rewrite a model so that its activations fit a memory."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias

from onnxtile.common_options import (
    EmitOptions,
    ModelArgument,
    ReportOptions,
    SizeOptions,
    TargetOptions,
    VerifyOptions,
    WriteOptions,
)
from onnxtile.declare import values
from onnxtile.declare.verb import WRITING, Choices, Content, Option, Rendered, Verb, names, require_within, writer_of
from onnxtile.system.dataclass import dataclass
from onnxtile.system.errors import UsageError, about_options, nearest
from onnxtile.system.registry import late
from onnxtile.verbs.plan import Capacities, require_target

if TYPE_CHECKING:
    from onnxtile.declare.verb import ResultWriter
    from onnxtile.fitting.strips import TargetSpeeds
    from onnxtile.planning.offsets.effort import SearchBudget
    from onnxtile.report.format import Emission, PlanExport
    from onnxtile.tiling.limits import Limits


def _read_share(value: Any) -> float:
    """Return the share that "10%" means; a number is a count of per cent."""
    text = str(value).strip().removesuffix("%")
    try:
        share = float(text)
    except ValueError:
        share = math.nan
    if isinstance(value, bool) or not math.isfinite(share):
        raise values.Unreadable("this is not a share", hint=_EXAMPLE_BUDGET)
    if share < 0:
        raise values.Unreadable("a budget is at least 0%", hint="write 10%, 2.5% or 0%")
    return share / 100


@dataclass(frozen=True)
class FitBudget:
    """What a result may take: multiply-accumulates done again, as a share of those of the model, and nodes; what the search may: a time.

    None stands for any number, and any time.
    """

    macs: float | None = None
    nodes: int | None = None
    search: str | None = None

    def __str__(self) -> str:
        macs = None if self.macs is None else f"{100 * self.macs:.10g}%"
        nodes = None if self.nodes is None else f"{self.nodes}nodes"
        return ",".join(filter(None, (macs, nodes, self.search)))


BudgetWords: TypeAlias = str | float | Sequence[str | float] | FitBudget
"""Budgets of multiply-accumulates "10%", of nodes "500nodes" and of the time of the search "30s": one of them, or several."""
_EXTRA_MACS = 0.1
"""The share of multiply-accumulates that may be done again where nothing is said."""


def _read_budget(value: Any) -> FitBudget:
    """Return the budget that words name: a share, a number of nodes and a time; none of them twice."""
    if isinstance(value, FitBudget):
        return value
    return FitBudget(**values.one_of_each(value, _budget_word, _EXAMPLE_BUDGET))


def _budget_word(word: Any) -> tuple[str, Any]:
    if isinstance(word, str) and word.strip().endswith(_NODES):
        return "nodes", values.read_count(values.number_or_text(word.strip().removesuffix(_NODES).strip()))
    if isinstance(word, str) and word.strip().endswith(_UNITS_OF_TIME):
        if not values.read_time(word):
            raise values.Unreadable("a search takes some time", hint="write 30s, 500ms or 2min")
        return "search", word.strip()
    return "macs", _read_share(word)


_NODES = "nodes"
_UNITS_OF_TIME = ("s", "min")
_EXAMPLE_BUDGET = "write 10%, 500nodes, 30s or 10%,500nodes"
SMALLEST = "smallest"
"""The capacity that asks for the smallest arena within the budget."""


def _read_memory(value: Any) -> str | int | dict[str, int]:
    """Return the bytes of one memory or of several by name, or the word for the smallest arena."""
    if value == SMALLEST:
        return SMALLEST
    try:
        return values.read_sizes(value)
    except values.Unreadable as error:
        if isinstance(value, str):
            error.hint = "write 262144, 256KiB, 8MiB or smallest"
        raise


_BUDGET = values.ValueKind(_read_budget, several=True, forms=('"10%"', '["10%", "500nodes", "30s"]'))
_MEMORY = replace(values.SIZES, read=_read_memory, forms=(*values.SIZES.forms, '"smallest"'))


def _read_io(value: Any) -> tuple[str, ...]:
    """Return where inputs and outputs are, at most one word, and the inputs that come row by row, each followed by "=rows"."""
    words = values.read_texts(value)
    placings = [word for word in words if not word.endswith(_ROWS)]
    for word in placings:
        if word not in (known := _PLACINGS.names()):
            raise values.Unreadable(
                f"{word!r} does not say where inputs are", hint=nearest(word, [*known, "INPUT=rows"])
            )
    if len(placings) > 1:
        raise values.Unreadable(f"{placings[1]!r} is the second place of inputs", hint="write one, and INPUT=rows")
    return words


_PLACINGS = Choices("onnxtile.kernels.from_onnx:PLACINGS", open=True)
_ROWS = "=rows"
_IO = values.ValueKind(_read_io, several=True, forms=('"inside"', '["inside", "image=rows"]'))
FUNCTIONS = ("fuse", "wrap")
"""What local functions of a result may be: meta-ops, and regions that are cut."""


_USUAL = "cortex-m7"
"""The target whose speeds are taken where none is given."""


@dataclass(frozen=True)
class CurveOptions(VerifyOptions, SizeOptions, TargetOptions):
    """The options of `fit_curve`."""

    model: ModelArgument
    _: KW_ONLY
    budget: Annotated[
        BudgetWords | None,
        Option(
            "at most: multiply-accumulates done again, nodes of the result, time of the search",
            "10%|500nodes|30s",
            default="10%",
            kind=_BUDGET,
            main=True,
        ),
    ] = None
    io: Annotated[
        str | Sequence[str],
        Option(
            "inputs inside the arena, free after their last read, or outside; or read row by row",
            "outputs|inside|outside|INPUT=rows",
            kind=_IO,
            choices=_PLACINGS,
            default="outputs",
            main=True,
        ),
    ] = ()
    tolerance: Annotated[
        Literal["exact", "1step"] | None,
        Option(
            "exact: results equal to the last bit; 1step: quantised outputs one step off",
            default="twice the effect of rounding",
            main=True,
        ),
    ] = None
    functions: Annotated[
        str | Sequence[str],
        Option(
            "local functions of the result: fuse tries meta-ops, wrap makes one of each region",
            "fuse|wrap",
            kind=values.TEXTS,
            choices=Choices(also=FUNCTIONS),
        ),
    ] = ()

    @property
    def extra_macs(self) -> float:
        """The multiply-accumulates that may be done again, as a share of those of the model."""
        share = self._budget.macs
        return _EXTRA_MACS if share is None else share

    @property
    def max_nodes(self) -> int | None:
        """How many nodes the result may have; None: any number."""
        return self._budget.nodes

    @property
    def _budget(self) -> FitBudget:
        return FitBudget() if self.budget is None else _read_budget(self.budget)

    @property
    def placing(self) -> str:
        """Where inputs and outputs are: "outputs" inside the arena, all "inside", or all "outside"."""
        return next((word for word in _read_io(self.io) if not word.endswith(_ROWS)), "outputs")

    @property
    def streamed(self) -> tuple[str, ...]:
        """The inputs that come row by row."""
        return tuple(word.removesuffix(_ROWS) for word in _read_io(self.io) if word.endswith(_ROWS))

    @property
    def exact(self) -> bool:
        """Whether only rewrites are allowed that are equal to the last bit."""
        return self.tolerance == "exact"

    @property
    def fuses(self) -> bool:
        """Whether the model is also fused, before it is cut and after."""
        return "fuse" in values.read_texts(self.functions)

    @property
    def wraps(self) -> bool:
        """Whether each region that is cut becomes a local function."""
        return "wrap" in values.read_texts(self.functions)

    @property
    def search_budget(self) -> SearchBudget | None:
        """The budget of a search that begins now; None without a limit of time. Raises UsageError."""
        from onnxtile.planning.offsets.effort import parse_effort

        text = self._budget.search
        return None if text is None else parse_effort(None, values.read_time(text)).budget

    @property
    def limits(self) -> Limits | None:
        """The limits on one tile; None where no target is given. Raises UsageError."""
        from onnxtile.tiling.limits import find, has_limits

        return None if self.target is None or not has_limits(self.target) else find(self.target)

    @property
    def speeds(self) -> TargetSpeeds:
        """The speeds of the target; those of a Cortex-M7 where no target is given, or it says none. Raises UsageError."""
        from onnxtile.fitting.strips import TargetSpeeds
        from onnxtile.tiling.limits import figures_of

        given, usual = None if self.target is None else figures_of(self.target), figures_of(_USUAL)
        if given is None or not (given.macs_by_type or given.macs_per_second):
            return TargetSpeeds(_USUAL, usual.macs_by_type, usual.copied_per_second or 1, usual.calls_per_second or 1)
        macs = given.macs_by_type or {"float32": given.macs_per_second or 1}
        name = self.target if isinstance(self.target, str) else "target"
        copied = given.copied_per_second or usual.copied_per_second or 1
        return TargetSpeeds(str(name), macs, copied, given.calls_per_second or usual.calls_per_second or 1)


@dataclass(frozen=True)
class FitOptions(CurveOptions):
    """The options of `fit`."""

    _: KW_ONLY
    capacity: Annotated[
        Capacities | None,
        Option(
            "size of the memory for activations, or smallest: the least that the budget allows",
            "[NAME=]256KiB|smallest",
            kind=_MEMORY,
            main=True,
        ),
    ] = None

    @property
    def fits_one(self) -> bool:
        """Whether one memory is to be fitted: without one, the command shows the trade."""
        return self.capacity is not None

    @property
    def memory(self) -> tuple[str, int] | None:
        """The name and the bytes of the memory, the fast one of two. Raises UsageError for more than two."""
        return next(iter(self._memories.items()), None)

    @property
    def memories(self) -> dict[str, int] | None:
        """The bytes of a fast and a slow memory by name; None for one memory. Raises UsageError for more than two."""
        return self._memories if len(self._memories) > 1 else None

    @property
    def _memories(self) -> dict[str, int]:
        sizes = {} if self.capacity is None else _read_memory(self.capacity)
        if isinstance(sizes, str):
            return {}
        if isinstance(sizes, int):
            return {"arena": sizes}
        if len(sizes) > 2:
            raise about_options(
                "{capacity} is given for more than two memories",
                hint="give those of the fast memory, and of the slow one after it",
            )
        return sizes


@dataclass(frozen=True)
class FitStepOptions(EmitOptions, FitOptions):
    """The options of the step `fit` of a pipeline."""

    _: KW_ONLY
    emit: Annotated[
        tuple[str, ...],
        Option(
            "also write the plan, as .json .html .c ..., or the trade, as .curve.html .curve.md ...",
            "FILE",
            heading=WRITING,
            kind=values.TEXTS,
            endings=Choices("onnxtile.verbs.fit:emit_endings"),
            main=True,
        ),
    ] = ()

    @property
    def wants_curve(self) -> bool:
        """Whether one of the files has the trade."""
        return any(is_curve(file) for file in self.emit)


@dataclass(frozen=True)
class FitCommand(WriteOptions, FitStepOptions):
    """Cut a model into strips until its activations fit a memory.

    Examples:
        onnxtile fit model.onnx --capacity sram=256KiB --dim batch=1
        onnxtile fit model.onnx --capacity smallest --budget 10%
        onnxtile fit model.onnx --emit trade.curve.html --budget 25%
    """


def require_memory(options: FitOptions) -> None:
    """Raise UsageError unless there is one memory to fit, or the smallest is asked for."""
    if not options.fits_one:
        raise about_options(
            "no memory to fit: {capacity} is not given",
            hint="give --capacity 256KiB or --capacity smallest",
        )
    if options.memories is not None and (options.placing != "outputs" or options.streamed):
        raise about_options(
            "{io} is for one memory, and {capacity} is given for two", hint="give one {capacity}, or leave {io} out"
        )
    if options.streamed and options.wraps:
        raise about_options(
            "{functions} wrap puts what reads the rows of {io} into functions", hint="leave one of the two out"
        )
    if options.fuses and options.memories is not None:
        raise about_options(
            "{functions} fuse is for one memory, and {capacity} is given for two", hint="fuse the result: onnxtile fuse"
        )


def require_no_fusing(options: CurveOptions) -> None:
    """Raise UsageError where the trade is asked for, and the model fused, which only one model that fits can be."""
    if options.fuses:
        raise about_options(
            "{functions} fuse is for one model that fits", hint="leave it out, or add --capacity 256KiB"
        )


def _prepare(_options: FitStepOptions, paths: Sequence[Path]) -> Rendered:
    """Return what renders the plan, in pictures beside the plan before, each at a scale of its own; and the curve."""
    from onnxtile.report.format import Emission

    plans = [path for path in paths if not is_curve(path.name)]
    emission = Emission.from_paths(plans)
    drawn = _curve_files(path for path in paths if is_curve(path.name))

    def rendered(content: Content) -> Mapping[Path, bytes]:
        files = {} if not plans else _plan_files(emission, content["before"], content["after"])
        return {**files, **{path: write(content["curve"], path) for path, write in drawn.items()}}

    return rendered


def _plan_files(emission: Emission, before: PlanExport, after: PlanExport) -> Mapping[Path, bytes]:
    """Return the files of the plan `after`. A model that does not fit has a plan, and no program in C."""
    files = {path: form for path, form in emission.files.items() if form.suffix != ".c" or after.firmware is not None}
    return replace(emission, files=files, before=before, own_scales=True).content(after)


def emit_endings() -> list[str]:
    """Return the endings of all files that fit writes: those of plans, and those of the trade."""
    from onnxtile.report.curve_files import ENDINGS
    from onnxtile.report.format import endings

    return sorted([*endings(), *ENDINGS])


def is_curve(file: str) -> bool:
    """Return whether a file, or its ending in a pipeline, has the trade and not a plan."""
    from onnxtile.report.curve_files import ENDINGS

    return f".{file}".endswith(ENDINGS)


def _curve_files(paths: Iterable[Path]) -> dict[Path, ResultWriter]:
    """Return the files of the trade, each with what writes it. Raises UsageError where a package is missing that draws it."""
    from onnxtile.report.curve_files import require_drawable

    writers = {path: writer_of("curve", path) for path in paths}
    for path in writers:
        require_drawable(path)
    return writers


def _writes(options: FitCommand) -> str | None:
    return "fitted" if options.fits_one else None


def _require(options: FitStepOptions) -> None:
    _ = options.limits
    require_target(options, options.figures)
    if not isinstance(options, FitCommand) or options.fits_one:
        require_memory(options)
        return
    hint = "add --capacity 256KiB or --capacity smallest"
    allowed = names(CurveOptions, ReportOptions) | {"emit", "dry_run"}
    message = "{option} is for one model that fits, and without {capacity} only the trade is shown"
    require_within(options, allowed, message.replace("{capacity}", "--capacity"), hint)
    plan = next((file for file in options.emit if not is_curve(file)), None)
    if plan is not None:
        from onnxtile.report.curve_files import ENDINGS, NAMED

        if NAMED in Path(plan).suffixes:
            raise UsageError(f"--emit {plan}: the trade has no such format", hint=f"write {', '.join(ENDINGS)}")
        raise UsageError(f"--emit {plan} is a plan of one model that fits, and no --capacity is given", hint=hint)
    require_no_fusing(options)


FIT = Verb("fit", FitCommand, late("onnxtile.verbs.flows.fit:run"), FitStepOptions, _writes, _prepare, _require)
