"""Results that hold a model, which is saved, or taken by the next verb without a file between; and the verdicts that they need."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import field, replace
from functools import cache, cached_property
from importlib import import_module
from inspect import signature as signature_of
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Concatenate, Generic, ParamSpec, TypeAlias, TypeVar, overload

import onnx_ir as ir

from onnxtile.declare.values import TargetFigures, path_of
from onnxtile.declare.verb import JsonFields, VerbResult, write_result
from onnxtile.model import save as files
from onnxtile.model.constants import Constants
from onnxtile.model.feeds import ANYTHING, Wanted
from onnxtile.model.load import Source
from onnxtile.model.modules import ModulePath, module_path
from onnxtile.model.save import Draft
from onnxtile.model.topology import node_ids
from onnxtile.system.dataclass import dataclass
from onnxtile.system.errors import Mismatch, UsageError, about_options
from onnxtile.system.files import require_writable, staged
from onnxtile.system.long_work import Progress

if TYPE_CHECKING:
    from onnxtile.arena.run import ArenaVerdict, StateVerdict
    from onnxtile.declare.plan_document import ArenaFormula
    from onnxtile.firmware.build import Firmware
    from onnxtile.fitting.result import FitStep, InputPlace, ModelCost, Obstacle, StreamedInput
    from onnxtile.fusion.fuse import PatternResult
    from onnxtile.fusion.lower.driver import LoweredSite
    from onnxtile.fusion.site_check import SiteVerdict
    from onnxtile.inspection.summary import Inspection
    from onnxtile.planning.ranges import LargestSize
    from onnxtile.planning.result import PlanResult
    from onnxtile.report.format import PlanExport
    from onnxtile.shapes.opened_calls import Unfolded
    from onnxtile.tiling.result import TileResult
    from onnxtile.tiling.site_check import TileVerdict
    from onnxtile.verbs.fit import FitOptions
    from onnxtile.verbs.flows.match import MatchResult
    from onnxtile.verbs.fuse import FuseOptions
    from onnxtile.verbs.inspect import InspectOptions
    from onnxtile.verbs.match import MatchOptions
    from onnxtile.verbs.plan import PlanOptions
    from onnxtile.verbs.tile import TileOptions
    from onnxtile.verbs.unfuse import UnfuseOptions
    from onnxtile.verbs.verify import CompareOptions
    from onnxtile.verification.trials import Verdict


BoundDims: TypeAlias = Mapping[str, int]
"""Sizes of symbolic dimensions, by name."""
InputShapes: TypeAlias = Mapping[str, tuple[int, ...]]
"""Whole shapes of inputs, by name."""


def file_of(model: Source) -> Path | None:
    """Return the file of `model`; None for a model in memory."""
    return Path(model) if isinstance(model, str | Path) else None


def save(model: ir.Model | Draft, path: str | Path, *, source: Source | None = None, force: bool = False) -> None:
    """Write `model`, whole or not at all. Raises UsageError where `path` is the `source` file and `force` is off."""
    if not isinstance(model, ir.Model | Draft):
        raise UsageError(f"a {type(model).__name__} is no model that can be saved", hint="give the model of a result")
    origin = Path(source) if isinstance(source, str | Path) else None
    files.save(model, path_of(path), source=origin, force=force)


# The verdict of the runs that a verb needs; what differs is an error.


def agreeing(verdict: Verdict, what: str) -> Verdict:
    """Return `verdict`, or raise Mismatch that names the worst output, or the first where none could be compared."""
    if verdict.equal:
        return verdict
    if verdict.is_empty:
        raise Mismatch(
            f"no output of {what} could be compared: {nothing_compared(verdict)}",
            hint="nothing was written; --no-verify writes the model without comparing",
        )
    raise Mismatch(
        f"{what} does not compute what the original does: {worst_difference(verdict)}",
        hint="nothing was written; please report it with the model",
    )


def worst_difference(verdict: Verdict) -> str:
    """Return by how much the output is off that differs most."""
    worst = max((output for output in verdict.outputs if not output.equal), key=lambda output: output.max_abs)
    return f"{worst.name!r} is off by {worst.max_abs:.3g}" + (f" ({worst.reason})" if worst.reason else "")


def nothing_compared(verdict: Verdict) -> str:
    """Return why the first output was not compared."""
    name, reason = next(iter(verdict.not_compared.items()))
    return f"{name!r}: {reason}"


def not_both() -> UsageError:
    """Return the error for a file of inputs together with ranges of random inputs."""
    message = "{inputs} name a file, so nothing is drawn from ranges"
    return about_options(message, hint="leave out one of the two")


def require_sites(failed: Iterable[str], hints: Mapping[str, str] | None = None) -> None:
    """Raise Mismatch where any site `failed` when it ran alone; `hints` has what helps, by the name of the site."""
    names = list(failed)
    if names:
        hint = (hints or {}).get(names[0], "please report it")
        raise Mismatch(f"{names[0]!r} run alone does not compute what it replaces", hint=f"nothing was written; {hint}")


def require_equal(verdict: ArenaVerdict | StateVerdict, sizes: str = "") -> None:
    """Raise Mismatch where a run inside the arena, " at seq=8" if `sizes` say so, differs from the plain run."""
    if not verdict.equal:
        where = f": {verdict.differing!r} at step {verdict.step}" if verdict.differing else ""
        reason = f"the run inside the arena{sizes} differs from the plain run{where}"
        raise Mismatch(reason, hint="please report it with the model")


# Verbs as methods of results.

P = ParamSpec("P")
R = TypeVar("R")


class ChainedVerb(Generic[P, R]):
    """A verb as a method of a result that holds a model: called with all arguments of the verb but the model.

    For type checkers, `declaration` names the class with its arguments, and `returned` that of what comes back. A result with a model
    keeps the file that the first verb read.
    """

    def __init__(
        self,
        verb: str,
        declaration: Callable[[], Callable[Concatenate[Source, P], Any]],
        returned: Callable[[], type[R]],
    ) -> None:
        self.verb, self.declaration, self.returned = verb, declaration, returned
        self.__doc__ = f"Apply onnxtile.{verb} to the model; the arguments are those of that function, save the model."

    @overload
    def __get__(self, result: None, owner: type[Any]) -> ChainedVerb[P, R]: ...
    @overload
    def __get__(self, result: ModelResult, owner: type[Any]) -> Callable[P, R]: ...
    def __get__(self, result: ModelResult | None, owner: type[Any]) -> ChainedVerb[P, R] | Callable[P, R]:
        """Return the method of a result."""
        if result is None:
            return self
        verb = _verb(self.verb)

        def call(*args: P.args, **given: P.kwargs) -> R:
            operands: tuple[Any, ...] = (result.model, *args)
            if self.verb == "verify":  # the model is compared with the original, which is its first argument
                original, *others = args or (given.pop("other"),)
                operands = (original, result.model, *others)
            outcome = verb(*operands, **given)
            return replace(outcome, source=result.source) if isinstance(outcome, ModelResult) else outcome  # type: ignore[return-value]

        signature = signature_of(verb)
        left = [parameter for name, parameter in signature.parameters.items() if name != "model"]
        call.__name__, call.__doc__ = self.verb, verb.__doc__
        call.__signature__ = signature.replace(parameters=left)  # type: ignore[attr-defined]
        return call


def _verb(name: str) -> Callable[..., Any]:
    """Return the function of a verb. The library finds it by its name, since verbs import their results."""
    function: Callable[..., Any] = getattr(import_module("onnxtile"), name)
    return function


# The results.


@dataclass(frozen=True, repr=False)
class ModelResult(VerbResult):
    """A result with a `model`. `source` is the file that the first verb read; `save` overwrites it only with `force`."""

    source: Path | None = field(default=None, kw_only=True, compare=False)

    if TYPE_CHECKING:  # the first field of each subclass

        @property
        def model(self) -> ir.Model:
            """The model that the verb made."""

    def save(self, path: str | Path, *, force: bool = False) -> None:
        """Write the model to `path`, whole or not at all. Raises UsageError where `path` is the file that was read and `force` is off.

        Without a file, `onnx_ir.to_proto(result.model)` makes an onnx.ModelProto of the model.
        """
        save(self.model, path, source=self.source, force=force)

    inspect = ChainedVerb("inspect", lambda: InspectOptions, lambda: Inspection)
    match = ChainedVerb("match", lambda: MatchOptions, lambda: MatchResult)
    fit = ChainedVerb("fit", lambda: FitOptions, lambda: FittedModel)
    verify = ChainedVerb("verify", lambda: CompareOptions, lambda: Verdict)


@dataclass(frozen=True, repr=False)
class RewrittenModel(ModelResult):
    """A result whose model the next verb may rewrite or plan: `onnxtile.fuse(model).tile(max=64).plan()`."""

    fuse = ChainedVerb("fuse", lambda: FuseOptions, lambda: FuseResult)
    unfuse = ChainedVerb("unfuse", lambda: UnfuseOptions, lambda: UnfuseResult)
    tile = ChainedVerb("tile", lambda: TileOptions, lambda: TiledModel)
    plan = ChainedVerb("plan", lambda: PlanOptions, lambda: PlannedModel)


def verified(verdict: Verdict | None) -> str:
    """Return whether there is a verdict, in words, and how many outputs were compared where not all were.

    A verb whose check fails raises, and returns none.
    """
    if verdict is None:
        return "not verified"
    count, left = len(verdict.outputs), len(verdict.not_compared)
    return f"verified in {count:,} of {count + left:,} outputs" if left else "verified"


@dataclass(frozen=True, repr=False)
class FuseResult(RewrittenModel):
    """The fused model, what each pattern did, and the verdict of the runs (None where verification was off).

    `arena` has the bytes of the arena before and after, where meta-ops were chosen by memory.

    - `source`: the file of the model; None for one in memory.
    - `model`: the fused model.
    - `patterns`: matches and calls of each pattern, and the matches that were refused.
    - `nodes_before`, `nodes_after`: numbers of nodes, with those in functions and bodies.
    - `verdict`: the comparison of the runs; None where verification was off.
    - `sites`: the run of each different site alone.
    - `lowered`: the meta-ops that became operators, or the reasons why they did not.
    """

    verb: ClassVar[str] = "fuse"
    JSON = "patterns nodes_before nodes_after verdict sites lowered arena"

    model: ir.Model
    patterns: tuple[PatternResult, ...]
    nodes_before: int
    nodes_after: int
    verdict: Verdict | None
    sites: tuple[SiteVerdict, ...] = ()
    lowered: tuple[LoweredSite, ...] = ()
    arena: ArenaChange | None = None

    @property
    def fused(self) -> int:
        """How many meta-ops the patterns made."""
        return sum(len(pattern.calls) for pattern in self.patterns)

    @property
    def summary(self) -> str:
        """How many nodes became how many, and how many meta-ops there are."""
        nodes = f"{self.nodes_before:,} nodes became {self.nodes_after:,}"
        return f"{nodes}, {self.fused:,} meta-ops, {verified(self.verdict)}"


@dataclass(frozen=True, repr=False)
class UnfuseResult(RewrittenModel):
    """The model as it was before fuse, and how many calls were undone.

    `unfused` has the number of calls that were undone, by meta-op, and `verdict` the comparison of runs (None where verification was off).
    """

    verb: ClassVar[str] = "unfuse"
    JSON = "unfused verdict"

    model: ir.Model
    unfused: Mapping[str, int]
    verdict: Verdict | None

    @property
    def summary(self) -> str:
        """How many calls were undone."""
        return f"{sum(self.unfused.values()):,} calls undone, {verified(self.verdict)}"


@dataclass(frozen=True)
class ArenaChange(JsonFields):
    """The bytes of the arena, as `plan` finds them, before and after tiling; None for both, with the reason, where not planned.

    `before` and `after` are bytes, `reason` is a sentence.
    """

    before: int | None = None
    after: int | None = None
    reason: str | None = None

    @property
    def grown(self) -> bool:
        """Whether the tiled model needs a larger arena."""
        return self.before is not None and self.after is not None and self.after > self.before


@dataclass(frozen=True)
class OpsetChange(JsonFields):
    """The opset of a model before and after tiling, and why it could not be raised where that was needed.

    `before` and `after` are versions, `reason` is a sentence.
    """

    before: int = 0
    after: int = 0
    reason: str | None = None


@dataclass(frozen=True, repr=False)
class TiledModel(RewrittenModel):
    """The tiled model, the report on each product, and the verdict of the runs (None where verification was off).

    - `model`: the tiled model.
    - `source`: the file of the model; None for one in memory.
    - `result`: the products that were tiled, each with its grid, and those that were left, each with the reason.
    - `nodes_before`, `nodes_after`: numbers of nodes, with those in functions and bodies.
    - `verdict`: the comparison of the runs; None where verification was off.
    - `sites`: the error of each different tiled product, run alone.
    - `peaks`: the largest sum of live bytes of each way to add partial sums, by product; None where it was not asked for.
    - `arena`: the bytes of the arena before and after.
    - `opset`: the version of the operator set before and after.
    - `warnings`: what may differ from the model on hardware.
    """

    verb: ClassVar[str] = "tile"
    JSON = "nodes_before nodes_after verdict sites peaks arena opset warnings"

    model: ir.Model
    result: TileResult
    nodes_before: int
    nodes_after: int
    verdict: Verdict | None
    sites: tuple[TileVerdict, ...] = ()
    peaks: Mapping[str, Mapping[str, int]] | None = None
    arena: ArenaChange = field(default_factory=ArenaChange)
    opset: OpsetChange = field(default_factory=OpsetChange)
    warnings: tuple[str, ...] = ()

    @property
    def summary(self) -> str:
        """How many nodes became how many, and how many products stand for the tiled ones."""
        nodes = f"{self.nodes_before:,} nodes became {self.nodes_after:,}"
        return f"{nodes}, {self.result.matmuls:,} tiles, {verified(self.verdict)}"

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON of `tile`."""
        return {**self.result.to_dict(), **super().to_dict()}


@dataclass(frozen=True)
class RangeVerdict:
    """Whether a model gives the same bits in its arena as in a plain run, at each of the `sizes` of its dimensions.

    `verdicts` are those of the runs at the sizes, in order. Each has offsets that scale with the sizes where the plan has some. One more is
    then at the first, the largest sizes, with fixed offsets. `state` is the verdict of runs with a state kept in place; None where there is
    no state.
    """

    sizes: tuple[Mapping[str, int], ...]
    verdicts: tuple[ArenaVerdict, ...]
    state: StateVerdict | None = None

    @property
    def _all(self) -> tuple[ArenaVerdict | StateVerdict, ...]:
        return self.verdicts if self.state is None else (*self.verdicts, self.state)

    @property
    def equal(self) -> bool:
        """Whether every bit was as in the plain run, at all sizes."""
        return all(verdict.equal for verdict in self._all)

    @property
    def runs(self) -> int:
        """The number of runs at all sizes."""
        return sum(verdict.runs for verdict in self._all)

    @property
    def excused(self) -> dict[str, str]:
        """The outputs that need not have the bits of a run of the whole model, with the reason."""
        return {name: reason for verdict in self._all for name, reason in verdict.excused.items()}

    def to_dict(self) -> dict[str, Any]:
        """Return the sizes, the sums over all runs, and the reasons for outputs that may differ."""
        return {
            "equal": self.equal,
            "sizes": [dict(sizes) for sizes in (self.sizes if self.state is None else self.state.sizes)],
            "runs": self.runs,
            "repeated": sum(verdict.repeated for verdict in self._all),
            "excused": self.excused,
            "verdicts": [verdict.to_dict() for verdict in self.verdicts],
            "state": self.state and self.state.to_dict(),
        }


@dataclass(frozen=True)
class OpenSizes(JsonFields):
    """The sizes that a verb takes for dimensions which the file leaves open; `options` are those that give the same sizes.

    `formulas` are the bytes of the arena of a plan for all sizes in `ranges`, which `plan` makes where it is given these ranges. They are
    empty where there is no such plan. `sizes` are in elements, by the name of the dimension.
    """

    options: str
    sizes: Mapping[str, int]
    ranges: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    formulas: tuple[ArenaFormula, ...] = ()


@dataclass(frozen=True, repr=False)
class PlannedModel(ModelResult):
    """The annotated model, its plan, and the verdict of the run inside the arena (None where verification was off).

    `not_run` is the reason why there was no run: onnxruntime has no kernel for an operator. The plan was checked all the same.
    Quantised islands that are kernels are meta-ops in the model, which `unfuse` opens again.

    - `source`: the file of the model; None for one in memory.
    - `model`: the annotated model.
    - `verdict`: the comparison of the runs; None where verification was off.
    - `plan`: order, offsets and sizes in bytes, and how good they are.
    - `firmware`: the program in C, with its bytes of flash and RAM; None where none was asked for.
    - `open_sizes`: the sizes that open dimensions were given, with formulas of the arena; None where none were open.
    - `largest`: the largest size that fits, with the bytes at it and at the next one; None where it was not asked for.
    - `wanted`: the inputs of the runs, which a program in C runs on, too.
    """

    verb: ClassVar[str] = "plan"
    JSON = "verdict not_run? firmware? open_sizes? largest?"

    model: ir.Model
    plan: PlanResult
    verdict: ArenaVerdict | StateVerdict | RangeVerdict | None
    not_run: str | None = None
    firmware: Firmware | None = None
    open_sizes: OpenSizes | None = None
    largest: LargestSize | None = None
    wanted: Wanted = field(default=ANYTHING, compare=False)

    @property
    def summary(self) -> str:
        """The size of the arena, and how it was proved."""
        proved = "not verified" if self.verdict is None else "verified"
        state = proved if self.not_run is None else f"checked, not run: {self.not_run}"
        return f"{self.plan.summary}, {state}"

    def write(self, path: str | Path, *, target: str | Path | Mapping[str, Any] | None = None) -> None:
        """Write the plan to `path` in the format that the ending selects: .json, .html, .c, .h, .csv, .svg ... Raises UsageError.

        A .c has its header beside it, and is proved as `plan` proves one, where the plan was verified. `target` is the hardware, as `plan`
        takes it: with `weights = "file"` in it there is a .weights.bin, too.
        """
        from onnxtile.report.format import RenderOptions, format_of

        whole = path_of(path)
        form = format_of(whole)
        if not form.beside:
            write_result(self.document, self.verb, path)
            return
        for file in (whole, *form.paths_beside(whole)):
            require_writable(file)
        with staged(form.contents(self._document(target), whole, RenderOptions(form.title(whole)))):
            pass

    @property
    def document(self) -> PlanExport:
        """The JSON of the plan, from which every format can be written."""
        return self._document(None)

    def _document(self, target: str | Path | Mapping[str, Any] | None) -> PlanExport:
        from onnxtile.report.format import PlanExport

        program = cache(lambda: self.firmware or self._built(target))
        return PlanExport(
            self.plan.to_dict(),
            self.constant_block,
            self.certificate,
            lambda title: program().files(title),
            modules_of(self.model),
        )

    def opened(self) -> Unfolded:
        """Return the model as it was planned, with its shapes, over ranges as formulas."""
        from onnxtile.model.binding import formula_names, rename_symbols
        from onnxtile.shapes.opened_calls import unfold
        from onnxtile.shapes.resolve import resolve

        model = self.model
        if self.plan.ranges:
            model = model.clone()
            rename_symbols(model, formula_names(model))
        known = resolve(model, run=True, wanted=self.wanted, ranges=self.plan.ranges)
        return unfold(model, known, Constants(model))

    def _built(self, target: str | Path | Mapping[str, Any] | None) -> Firmware:
        """Return the program in C. Raises UsageError for a node for which none can be written, Mismatch."""
        from onnxtile.firmware.build import ProgramTarget, build
        from onnxtile.tiling.limits import figures_of

        how = ProgramTarget.from_figures(TargetFigures() if target is None else figures_of(target))
        return build(self.opened(), self.plan, wanted=self.wanted, verify=self.verdict is not None, target=how)

    def certificate(self) -> dict[str, Any]:
        """Return the certificate of the plan, which `check/check_account.py` and `check_bound.py` accept. Raises ModelError."""
        from onnxtile.check.certificate import certificate

        return certificate(self.model, self.plan)

    def constant_block(self) -> bytes:
        """Return the bytes of the constants, each at its offset in the block of constants. Raises UsageError, ModelError."""
        from onnxtile.planning.rows import constant_block

        return constant_block(self.model, self.plan)

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON of `plan`."""
        return {**self.plan.to_dict(), **super().to_dict()}


def modules_of(model: ir.Model) -> dict[str, ModulePath]:
    """Return the modules around each node of the main graph, by the name that a schedule has."""
    return {name: module_path(node.name, node.metadata_props) for node, name in node_ids(model.graph).items()}


# The result of fit.


@dataclass(frozen=True)
class ModelPlan:
    """The plan of a model, and the model as it was planned: quantised islands are kernels, and calls of functions are open.

    `opened` is that model, `plan` the plan, `firmware` the program in C, if one was asked for.
    """

    opened: Unfolded
    plan: PlanResult
    firmware: Firmware | None = None

    @property
    def document(self) -> PlanExport:
        """The JSON of the plan, from which every format can be written."""
        from onnxtile.planning.rows import constant_block
        from onnxtile.report.format import PlanExport

        firmware = None if self.firmware is None else self.firmware.files
        model = self.opened.model
        return PlanExport(
            self.plan.to_dict(),
            lambda: constant_block(model, self.plan),
            firmware=firmware,
            modules=modules_of(model),
        )

    def run(self, progress: Progress) -> ArenaVerdict:
        """Run the model inside its arena and outside it, and compare every tensor bit for bit."""
        from onnxtile.arena.run import arena_run

        opened = self.opened
        return arena_run(opened.model, self.plan, opened.shapes, opened.constants, progress=progress)


@dataclass(frozen=True, repr=False)
class FittedModel(RewrittenModel):
    """The model that fits, its plan, its costs before and after, and the steps that were taken.

    The model holds the plan as metadata, as `plan` writes it; a model with quantised islands does not. Where nothing fits, `model` and
    `after` are those of the smallest arena that was reached, and `blocked_by` says what is in the way. `verdict` is that of the runs of
    both models, `arena_verdict` that of the run inside the arena; both are None where verification was off, or nothing fits.
    `tiled` is the result of tiling the pieces within limits; None where none were given. `curve`
    is the trade of which this model is one point; None where it was not asked for.

    - `planned_before`, `planned`: the plans of the model as it is and of the result, with the models that were planned.
    - `memory`: the name and the bytes of the memory, the fast one of two; None where the smallest arena was looked for.
    - `before`: arena, peak and copies in bytes, MACs, nodes, and the estimated time in seconds.
    - `steps`: the rewrites and the regions that were cut, in their order.
    - `speeds`: the name of the target by whose speeds time is estimated.
    - `streamed`: inputs that are read in pieces, with the bytes of the largest piece.
    - `plan_inputs`: returns the arenas in bytes with inputs outside, and inside.
    - `open_sizes`: the sizes that open dimensions were given; None where none were open.
    """

    verb: ClassVar[str] = "fit"

    model: ir.Model
    planned_before: ModelPlan
    planned: ModelPlan
    memory: tuple[str, int] | None
    before: ModelCost
    after: ModelCost
    steps: tuple[FitStep, ...]
    blocked_by: Obstacle | None
    verdict: Verdict | None
    arena_verdict: ArenaVerdict | None
    tiled: TileResult | None = None
    curve: FitCurve | None = None
    speeds: str = ""
    streamed: tuple[StreamedInput, ...] = ()
    plan_inputs: Callable[[], tuple[InputPlace, ...]] = field(default=tuple, compare=False)
    open_sizes: OpenSizes | None = None

    @cached_property
    def inputs(self) -> tuple[InputPlace, ...]:
        """The arenas with inputs outside, and inside; none for two memories."""
        return self.plan_inputs()

    @property
    def fits(self) -> bool:
        """Whether the arena is within the capacity, if one was given."""
        return self.memory is None or self.after.arena <= self.memory[1]

    @property
    def reason(self) -> str | None:
        """The reason why nothing fits, in a line; None where it fits."""
        if self.fits or self.memory is None:
            return None
        name, size = self.memory
        blocked = self.blocked_by
        where = f"; {blocked.live}" if blocked and blocked.live else ""
        if blocked and blocked.search == "floor":
            return f"nothing fits {name} of {size:,} bytes: no way to cut the model takes less than {blocked.floor:,} bytes{where}"
        ended = "; the bound of the search ended it" if blocked and blocked.search == "bound" else ""
        gaps = self.after.arena - blocked.peak if blocked else 0
        beside = f", beside gaps of {gaps:,} bytes" if gaps else ""
        reached = f"the search came down to {self.after.arena:,} bytes{where}{beside}{ended}"
        return f"nothing fits {name} of {size:,} bytes: {reached}"

    @property
    def summary(self) -> str:
        """The arena before and after, and what that cost."""
        extra = (self.after.macs - self.before.macs) / max(self.before.macs, 1)
        sizes = f"arena {self.before.arena:,} to {self.after.arena:,} bytes"
        return f"{sizes}, {extra:+.1%} MACs, {self.after.nodes:,} nodes, {verified(self.verdict)}"

    @property
    def _movement(self) -> dict[str, Any]:
        """The bytes copied between two memories, without the single copies; nothing for one memory."""
        movement = self.planned.plan.movement
        if movement is None:
            return {}
        keys = ("fast", "slow", "bytes", "forced", "lower_bound", "bound")
        return {"movement": {**{key: getattr(movement, key) for key in keys}, "copies": len(movement.copies)}}

    @property
    def documents(self) -> dict[str, PlanExport]:
        """The JSON of the plans `before` and `after`, from which every format can be written."""
        return {"before": self.planned_before.document, "after": self.planned.document}

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON of `fit`."""
        return {
            "capacity": self.memory and {"name": self.memory[0], "bytes": self.memory[1]},
            "fits": self.fits,
            "speeds": self.speeds,
            "before": self.before.to_dict(),
            "after": self.after.to_dict(),
            "inputs": [place.to_dict() for place in self.inputs],
            "streamed": [stream.to_dict() for stream in self.streamed],
            **self._movement,
            "steps": [step.to_dict() for step in self.steps],
            "tiled": self.tiled and self.tiled.to_dict(),
            "curve": self.curve and self.curve.to_dict()["curve"],
            **({} if self.planned.firmware is None else {"firmware": self.planned.firmware.to_dict()}),
            **({} if self.open_sizes is None else {"open_sizes": self.open_sizes.to_dict()}),
            "blocked_by": self.blocked_by and self.blocked_by.to_dict(),
            "verdict": self.verdict
            and {**self.verdict.to_dict(), "arena": self.arena_verdict and self.arena_verdict.to_dict()},
        }


@dataclass(frozen=True)
class CurvePoint:
    """The costs of the model as it is within one arena. `estimated`: the arena is the peak of the search, and no plan was made.

    `cost` has these costs.
    """

    cost: ModelCost
    estimated: bool

    def to_dict(self) -> dict[str, Any]:
        """Return the fields, ready for JSON."""
        return {**self.cost.to_dict(), "estimated": self.estimated}


@dataclass(frozen=True, repr=False)
class FitCurve(VerbResult):
    """The points of the trade, from the model as it is to the smallest arena within the budget; `write` draws them.

    `points` have the arena in bytes, MACs, nodes and copied bytes of each model. `model` is the name of the file, empty for a model in
    memory. `command` is the command line that makes a point, without a capacity.
    """

    verb: ClassVar[str] = "curve"
    JSON = "model command curve=points"

    points: tuple[CurvePoint, ...]
    model: str = ""
    command: str = ""

    @property
    def summary(self) -> str:
        """The arenas of the first and the last point."""
        first, last = self.points[0].cost, self.points[-1].cost
        return f"{len(self.points):,} points, arena {first.arena:,} to {last.arena:,} bytes"
