"""inspect: operators, parameters, work and bytes of a model; or the values of chosen nodes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from onnxtile.common_options import InputOptions, ModelArgument, ReportOptions, SizeOptions
from onnxtile.declare import values
from onnxtile.declare.option import WRITING, Choices, Option, Positional, declared, names, narrowed, require_within
from onnxtile.declare.verb import Content, Outcome, Verb
from onnxtile.system.errors import NAME_ONLY, UsageError

if TYPE_CHECKING:
    from onnxtile.inspection.summary import Inspection
    from onnxtile.inspection.trace import Trace

ENDINGS = (".csv", ".json")


@dataclass(frozen=True)
class InspectOptions(SizeOptions):
    """The options of `inspect`."""

    model: ModelArgument
    _: KW_ONLY
    training: Annotated[bool, Option("list the activations that a backward pass keeps")] = False
    tree: Annotated[bool, Option("sums over modules, as the names of nodes nest them")] = False


@dataclass(frozen=True)
class InspectStep(InspectOptions):
    """The options of the step `inspect` of a pipeline."""

    _: KW_ONLY
    emit: Annotated[
        tuple[str, ...],
        Option(
            "also write the nodes as .csv, or all as .json",
            "FILE",
            heading=WRITING,
            kind=values.TEXTS,
            endings=Choices(also=ENDINGS),
        ),
    ] = ()


@dataclass(frozen=True)
class TraceOptions(InputOptions):
    """The options of `trace`."""

    model: ModelArgument
    nodes: Annotated[str | Sequence[str], Positional("NODE|OP|QUERY", "nodes to trace", values.TEXTS)]
    _: KW_ONLY
    seed: Annotated[int, Option("seed of the random inputs", "N", kind=values.NATURAL)] = 0


@dataclass(frozen=True)
class InspectCommand(ReportOptions, InputOptions, InspectStep):
    """Show operators, parameters, MACs and bytes, node by node.

    Examples:
        onnxtile inspect model.onnx --dim batch=1
        onnxtile inspect model.onnx --emit nodes.csv --training
        onnxtile inspect model.onnx --trace Softmax -o activations.npz
    """

    _: KW_ONLY
    trace: Annotated[
        tuple[str, ...],
        Option("run the model, and show the outputs of these nodes", "NODE|OP|QUERY", kind=values.TEXTS),
    ] = ()
    output: Annotated[str | None, Option("write the traced outputs", "FILE.npz", ("-o", "--output"), WRITING)] = None


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
    from onnxtile.verbs.flows import tracing

    return tracing.trace(options)


def _run(options: InspectStep) -> Outcome:
    from onnxtile.model.npz_inputs import write_arrays
    from onnxtile.verbs.flows import inspecting, tracing

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
    from onnxtile.report import inspect_csv, inspect_json

    renderers = {".csv": inspect_csv.render, ".json": inspect_json.render}
    for path in paths:
        if path.suffix not in renderers:
            raise UsageError(f"{path}: no format has this ending", hint=f"the endings are {', '.join(ENDINGS)}")
    return lambda content: {path: renderers[path.suffix](content) for path in paths}


INSPECT = Verb("inspect", InspectCommand, _run, InspectStep, emits=_prepare, require=_require)
