"""plan: give every activation an offset in an arena."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

from onnxtile.common_options import (
    EmitOptions,
    InputOptions,
    ModelArgument,
    ReportOptions,
    RunWords,
    TargetOptions,
    VerifyOptions,
    WatchOptions,
    WriteOptions,
    counted_runs,
)
from onnxtile.declare import values
from onnxtile.declare.layout_rules import LAYOUT, LayoutRules, LayoutTable, rules_in
from onnxtile.declare.values import TargetFigures
from onnxtile.declare.verb import (
    SIZES,
    WRITING,
    Choices,
    Option,
    Outcome,
    Positional,
    Rendered,
    Verb,
    names,
    require_within,
)
from onnxtile.system.dataclass import dataclass
from onnxtile.system.errors import UsageError, about_options, nearest
from onnxtile.system.registry import imported
from onnxtile.system.text import whole

if TYPE_CHECKING:
    from onnxtile.planning.offsets.effort import Effort
    from onnxtile.planning.offsets.memories import Capacity
    from onnxtile.planning.result import PlanResult
else:
    PlanResult: TypeAlias = Any

_SEARCH = "Search"
OVERWRITE = "overwrite"
"""The place of inputs and outputs inside the arena, where the bytes of inputs are reused."""
Capacities: TypeAlias = int | str | Mapping[str, int] | Mapping[str, str]
"""The bytes of one arena, or of several by name, the fastest first."""


@dataclass(frozen=True)
class SearchChoice:
    """A search for offsets: the planner, its effort (a level, or a number of steps, as a text), and the seconds that end it."""

    planner: str = "best"
    effort: str | None = None
    seconds: float | None = None


SearchWords: TypeAlias = str | int | Sequence[str | int] | SearchChoice
"""A planner, a level of effort or a number of steps, and a time such as "5s": one of them, or several."""


def _search_words() -> list[str]:
    """Return the words of a search: the planners, and the levels of effort."""
    from onnxtile.planning.offsets.effort import LEVELS
    from onnxtile.planning.planners import planners

    return [*planners(), *LEVELS]


def _read_search(value: Any) -> SearchChoice:
    """Return the search that words name: a planner, a level of effort or a number of steps, and a time; none of them twice."""
    if isinstance(value, SearchChoice):
        return value
    return SearchChoice(**values.one_of_each(value, _search_word, "write exact, high or 5s, one of each at most"))


def _search_word(word: Any) -> tuple[str, str | float]:
    from onnxtile.planning.offsets.effort import LEVELS

    if isinstance(word, bool) or not isinstance(word, str | int):
        raise values.Unreadable("give a planner, an effort or a time")
    text = str(word).strip()
    if text in LEVELS or whole(text) is not None:
        return "effort", text
    if not text[:1].isdigit():
        if text not in (known := _search_words()):
            raise values.Unreadable(f"{text!r} is no planner and no effort", hint=nearest(text, known))
        return "planner", text
    return "seconds", values.read_time(f"{text}s" if text[-1].isdigit() else text)


_SEARCHED = values.ValueKind(_read_search, several=True, forms=('"high"', "10_000", '["exact", "high", "5s"]'))


@dataclass(frozen=True, kw_only=True)
class OffsetOptions(WatchOptions):
    """Options of every search for offsets."""

    alignment: Annotated[
        int | None, Option("alignment of buffers", "BYTES", default="64; 1 for a .csv", kind=values.SIZE)
    ] = None
    capacity: Annotated[
        Capacities | None,
        Option("size limit of an arena, the fastest first", "[NAME=]256KiB", kind=values.SIZES, main=True),
    ] = None
    search: Annotated[
        SearchWords | None,
        Option(
            "planner, effort (low, normal, high, or a number of steps) and time limit of the search",
            "best|high|5s",
            heading=_SEARCH,
            default="best,normal",
            kind=_SEARCHED,
            choices=Choices("onnxtile.verbs.plan:_search_words", open=True),
        ),
    ] = None

    @property
    def planner(self) -> str:
        """The name of the planner."""
        return self._search.planner

    @property
    def effort(self) -> Effort:
        """The effort that a planner may take."""
        from onnxtile.planning.offsets.effort import parse_effort

        return parse_effort(self._search.effort, self._search.seconds)

    @property
    def _search(self) -> SearchChoice:
        return SearchChoice() if self.search is None else _read_search(self.search)

    @property
    def capacities(self) -> Capacity:
        """The capacities in bytes."""
        return None if self.capacity is None else values.read_sizes(self.capacity)


@dataclass(frozen=True)
class ProblemOptions(OffsetOptions):
    """The options of `plan_problem`."""

    file: Annotated[Path | str, Positional("FILE", "a bare problem, as .csv")]


@dataclass(frozen=True)
class TfliteOptions(VerifyOptions, OffsetOptions):
    """The options of `plan_tflite`."""

    file: Annotated[Path | str, Positional("FILE", "a TensorFlow Lite model, as .tflite")]


@dataclass(frozen=True)
class CheckOptions(InputOptions):
    """The options of `check_plan`."""

    model: ModelArgument
    plan: Annotated[
        PlanResult | Path | str, Positional("PLAN", "a plan: a result, a .json file or a planned model", values.PLAN)
    ]


@dataclass(frozen=True)
class PlanOptions(VerifyOptions, InputOptions, OffsetOptions, TargetOptions):
    """The options of `plan`."""

    model: ModelArgument
    _: KW_ONLY
    io: Annotated[
        str,
        Option(
            "inputs and outputs in the arena or not; overwrite: inside, and inputs may be overwritten",
            "outputs|inside|overwrite|outside",
            choices=Choices("onnxtile.kernels.from_onnx:PLACINGS", also=(OVERWRITE,)),
            main=True,
        ),
    ] = "outputs"
    state: Annotated[
        Mapping[str, str] | str | None,
        Option(
            "keep an input and its next value at one address; found: all that are found",
            "INPUT=OUTPUT|found|none",
            default="list those found",
            kind=values.STATES,
            main=True,
        ),
    ] = None
    runs: Annotated[RunWords | None, counted_runs("runs one after the other that prove kept states", 64)] = None
    largest: Annotated[
        str | None,
        Option("find the largest size of a dimension with which weights, states and arena fit", "NAME", heading=SIZES),
    ] = None
    layout: Annotated[
        LayoutTable | LayoutRules | Path | str | None,
        Option(
            "file of pins, places, kept tensors and workspaces",
            "layout.toml",
            kind=LAYOUT,
        ),
    ] = None
    movement: Annotated[
        str,
        Option(
            "copy tensors, or weights too, to the first of two memories while kernels use them",
            "none|activations|weights",
            choices=Choices("onnxtile.planning.result:MOVEMENTS"),
            main=True,
        ),
    ] = "none"
    kernels: Annotated[
        str,
        Option(
            "plan quantised islands as one kernel each, or node by node",
            "islands|nodes",
            choices=Choices("onnxtile.verbs.flows.kernels:KernelChoice"),
        ),
    ] = "islands"
    order: Annotated[
        str,
        Option(
            "execution order of the nodes",
            "auto|model|min-peak|any",
            heading=_SEARCH,
            choices=Choices("onnxtile.planning.orders:orders"),
        ),
    ] = "auto"

    @property
    def state_runs(self) -> int:
        """How many runs, one after the other, prove kept states."""
        return self.run_count or 64

    @cached_property
    def rules(self) -> LayoutRules:
        """The rules of the layout. Raises UsageError for a file that has none."""
        if self.layout is None:
            return LayoutRules()
        layout = LAYOUT.read(self.layout)
        return layout if isinstance(layout, LayoutRules) else rules_in(layout)

    @property
    def is_bare(self) -> bool:
        """Whether the file is a bare problem, not a model."""
        return isinstance(self.model, Path) and self.model.suffix.lower() == ".csv"

    @property
    def is_tflite(self) -> bool:
        """Whether the file is a TensorFlow Lite model."""
        return isinstance(self.model, Path) and self.model.suffix.lower() == ".tflite"


@dataclass(frozen=True, kw_only=True)
class PlanOutput(EmitOptions):
    """The files that a plan is written to beside the model."""

    compare: Annotated[
        Path | None, Option("second plan, drawn beside the first in pictures", "PLAN.json", heading=WRITING)
    ] = None


@dataclass(frozen=True)
class PlanStep(PlanOutput, PlanOptions):
    """The options of the step `plan` of a pipeline."""


@dataclass(frozen=True)
class PlanCommand(WriteOptions, PlanStep):
    """Give every activation, or buffer of a problem in a .csv, an offset.

    Examples:
        onnxtile plan model.onnx --dim batch=1 --capacity 256KiB --emit plan.html
        onnxtile plan model.tflite --capacity 256KiB
        onnxtile plan problem.csv --capacity arena=1048576 --emit out.csv
    """

    _: KW_ONLY
    check: Annotated[Path | None, Option("check this plan, a .json file or a planned model", "PLAN")] = None


def require_target(options: EmitOptions, figures: TargetFigures) -> None:
    """Raise UsageError for a program in C where emx is missing, or the target names a command that is not there."""
    if options.wants_c:
        from onnxtile.firmware.build import ProgramTarget
        from onnxtile.firmware.kernels import require_emx

        require_emx()
        ProgramTarget.from_figures(figures).tools()


def _require(options: PlanStep) -> None:
    _ = options.figures
    require_target(options, options.figures)
    if options.wants_c and (options.is_bare or options.is_tflite):
        raise about_options("a program in C is written of an ONNX model alone", hint="emit another file with {emit}")
    if isinstance(options, PlanCommand):
        _require_one_mode(options)
    if not options.is_bare and options.rules.workspaces:
        from onnxtile.planning.workspaces import WorkspaceRules

        WorkspaceRules.from_texts(options.rules.workspaces, options.rules.shared_workspaces)


def _require_one_mode(options: PlanCommand) -> None:
    if options.is_bare:
        allowed = names(ProblemOptions, PlanOutput, WriteOptions, VerifyOptions) - {"output"}
        require_within(options, allowed, "{option} is for models, not for a bare problem", "leave it out")
    elif options.is_tflite:
        allowed = names(TfliteOptions, PlanOutput, WriteOptions) | {"model"}
        require_within(options, allowed, "{option} is for ONNX models, not for a .tflite", "leave it out")
        _require_tflite_files(options)
    elif options.check is not None:
        allowed = names(CheckOptions, ReportOptions) | {"check", "dry_run"}
        message = "{option} is for planning, and {check} plans nothing"
        require_within(options, allowed, message, "leave one of the two out")


def _require_tflite_files(options: PlanCommand) -> None:
    """Raise UsageError for files that the plan of a .tflite cannot be written to."""
    if options.output == "-":
        raise about_options("a .tflite is written to a file, not to stdout", hint="name a file with {output}")
    for file in options.emit:
        if file.endswith((".tflm", ".tflm.json", ".bin")):
            raise UsageError(
                f"{file}: of a .tflite this is not written", hint="the written model has the plan and the constants"
            )


def _prepare(options: PlanStep, paths: Sequence[Path]) -> Rendered:
    from onnxtile.report.format import Emission

    return Emission.from_paths(paths, options.compare).content


def _writes(options: PlanCommand) -> str | None:
    if options.is_tflite:
        return "planned.tflite"
    return None if options.check is not None or options.is_bare else "planned"


def _run(options: PlanStep) -> Outcome:
    """Do the work for the kind of file, or the check."""
    flow = "other_formats" if options.is_bare or options.is_tflite else "plan"
    if isinstance(options, PlanCommand) and options.check is not None:
        flow = "check_plan"
    done: Outcome = imported(f"onnxtile.verbs.flows.{flow}:run")(options)
    return done


PLAN = Verb("plan", PlanCommand, _run, PlanStep, _writes, _prepare, _require)
