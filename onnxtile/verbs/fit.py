"""fit: rewrite a model so that its activations fit a memory."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

from onnxtile import values
from onnxtile.common_options import ModelArgument, SizeOptions, VerifyOptions, WriteOptions
from onnxtile.errors import NAME_ONLY, UsageError
from onnxtile.option import Option, declared
from onnxtile.verb import Content, Emits, Outcome, Verb
from onnxtile.verbs.plan import EmitOptions, endings

if TYPE_CHECKING:
    from onnxtile.verbs.flows.fitted_model import FittedModel

MemorySizes: TypeAlias = int | str | Mapping[str, int] | Mapping[str, str]
"""The bytes of one memory, alone or by its name."""


def _read_share(value: Any) -> float:
    """Return the share that "10%" means; a number is a count of per cent."""
    text = str(value).strip().removesuffix("%")
    try:
        share = float(text)
    except ValueError:
        share = math.nan
    if isinstance(value, bool) or not math.isfinite(share):
        raise values.Unreadable("this is not a share", hint="write 10%, 2.5% or 0%")
    if share < 0:
        raise values.Unreadable("a budget is at least 0%", hint="write 10%, 2.5% or 0%")
    return share / 100


_SHARE = values.ValueKind(_read_share)


@dataclass(frozen=True)
class FitOptions(VerifyOptions, SizeOptions):
    """The options of `fit`."""

    model: ModelArgument
    _: KW_ONLY
    capacity: Annotated[
        MemorySizes | None,
        Option("size of the memory for activations", "[NAME=]256KiB", kind=values.SIZES),
    ] = None
    smallest: Annotated[bool, Option("find the smallest arena within the budget")] = False
    max_extra_macs: Annotated[
        float | str,
        Option("budget of multiply-accumulates done again", "10%", default="10%", kind=_SHARE),
    ] = 0.1
    exact: Annotated[bool, Option("allow only rewrites that are equal to the last bit")] = False
    max_nodes: Annotated[int | None, Option("upper bound of the nodes of the result", "N")] = None

    @property
    def memory(self) -> tuple[str, int] | None:
        """The name and the bytes of the memory. Raises UsageError for more than one."""
        if self.capacity is None:
            return None
        sizes = values.read_sizes(self.capacity)
        if isinstance(sizes, int):
            return "arena", sizes
        if len(sizes) > 1:
            raise UsageError(
                "{capacity} is given for several memories, and fit fills one",
                hint="give the capacity of the fastest memory alone",
                given={"capacity": NAME_ONLY},
            )
        return next(iter(sizes.items()))


@dataclass(frozen=True)
class FitStepOptions(EmitOptions, FitOptions):
    """The options of the step `fit` of a pipeline."""


@dataclass(frozen=True)
class FitCommand(WriteOptions, FitStepOptions):
    """Cut a model into strips until its activations fit a memory.

    Examples:
        onnxtile fit model.onnx --capacity sram=256KiB --dim batch=1
        onnxtile fit model.onnx --smallest --max-extra-macs 10%
    """


@declared(FitOptions)
def fit(options: FitOptions) -> FittedModel:
    """Return a model that computes what `model` computes, and whose arena is at most `capacity` bytes large.

    Runs of operators are cut into strips of rows; rows that the next strip reads again are kept. With `smallest`, the smallest arena within
    the budget is looked for. The arena is that of `onnxtile.plan` with its defaults; with `verify`, both models are run and compared.
    Raises ModelError, UsageError; Infeasible where nothing fits; Mismatch where an output differs.
    """
    from onnxtile.verbs.flows import fitting

    return fitting.fit(options)


def _run(options: FitOptions) -> Outcome:
    from onnxtile.verbs.flows import fitting

    result = fitting.attempt(options)
    note = "" if result.reason is None else f"error: {result.reason}\n"
    model = result.model if result.fits else None
    return Outcome(result, "fit", model, reason=result.reason, note=note, emitted=result.documents)


def _prepare(options: FitStepOptions, paths: Sequence[Path]) -> Callable[[Content], Mapping[Path, bytes]]:
    """Return what renders the plan; pictures show the plan before beside it."""
    from onnxtile.report.emit import Emission

    emission = Emission.of(paths, options.names, color_by=options.color_by)
    return lambda plans: replace(emission, before=plans["before"]).content(plans["after"])


def require_memory(options: FitOptions) -> None:
    """Raise UsageError unless there is one memory to fit, or the smallest is asked for."""
    if options.memory is None and not options.smallest:
        raise UsageError(
            "no memory to fit: neither {capacity} nor {smallest} is given",
            hint="give --capacity 256KiB, or --smallest",
            given={"capacity": NAME_ONLY, "smallest": NAME_ONLY},
        )
    if options.memory is not None and options.smallest:
        raise UsageError(
            "{capacity} and {smallest} exclude each other",
            hint="leave out one of the two",
            given={"capacity": NAME_ONLY, "smallest": NAME_ONLY},
        )


FIT = Verb("fit", FitCommand, _run, FitStepOptions, lambda _options: "fitted", Emits(endings, _prepare), require_memory)
