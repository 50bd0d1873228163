"""inspect: operators, parameters, work and bytes of a model; or the values of chosen nodes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from onnxtile.common_options import ReportOptions
from onnxtile.declare.option import declared, names, narrowed, require_within
from onnxtile.declare.verb import Content, Outcome, Verb
from onnxtile.system.errors import NAME_ONLY
from onnxtile.verbs.options.inspect import InspectCommand, InspectOptions, InspectStep, TraceOptions

if TYPE_CHECKING:
    from onnxtile.inspection.summary import Inspection
    from onnxtile.inspection.trace import Trace


@declared(InspectOptions)
def inspect(options: InspectOptions) -> Inspection:
    """Return operators, parameters, work and traffic of `model`, layer by layer, without running it, at any size.

    With `training`, also the bytes of activations that a backward pass would keep; with `tree`, sums over the modules that the names of
    nodes say. Raises ModelError, UsageError.
    """
    from onnxtile.verbs.flows import inspecting

    return inspecting.inspect(options)


@declared(TraceOptions)
def trace(options: TraceOptions) -> Trace:
    """Run `model` and return the outputs of `nodes`: names of nodes, operators, or queries. Raises ModelError, UsageError, QueryError."""
    from onnxtile.verbs.flows import inspecting as tracing

    return tracing.trace(options)


def _run(options: InspectStep) -> Outcome:
    from onnxtile.model.npz_inputs import write_arrays
    from onnxtile.verbs.flows import inspecting
    from onnxtile.verbs.flows import inspecting as tracing

    if isinstance(options, InspectCommand) and options.trace:
        traced = tracing.trace(narrowed(TraceOptions, options, nodes=options.trace))
        return Outcome(traced, "trace", save=partial(write_arrays, arrays=traced.arrays))
    return Outcome(inspecting.inspect(options), "inspect")


def _require(options: InspectStep) -> None:
    if not isinstance(options, InspectCommand):
        return
    given = {"trace": NAME_ONLY}
    if options.trace:
        allowed = names(TraceOptions, ReportOptions) | {"trace", "output"}
        require_within(
            options,
            allowed,
            "{option} does not go with {trace}, which runs the model",
            "leave one of the two out",
            **given,
        )
    else:
        allowed = names(InspectStep, ReportOptions)
        hint = "inspect runs nothing without it; --emit writes the nodes"
        require_within(options, allowed, "{option} is for {trace}", hint, **given)


def _prepare(_options: InspectStep, paths: Sequence[Path]) -> Callable[[Content], Mapping[Path, bytes]]:
    from onnxtile.declare.verb import writer_of

    writers = {path: writer_of("inspect", path) for path in paths}
    return lambda content: {path: write(content, path) for path, write in writers.items()}


INSPECT = Verb("inspect", InspectCommand, _run, InspectStep, emits=_prepare, require=_require)
