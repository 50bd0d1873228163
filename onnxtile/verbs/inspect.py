"""inspect: operators, parameters, work and bytes of a model; or the values of chosen nodes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY
from pathlib import Path
from typing import Annotated, Literal

from onnxtile.common_options import InputOptions, ModelArgument, ReportOptions, SizeOptions
from onnxtile.declare import values
from onnxtile.declare.verb import WRITING, Choices, Option, Positional, Rendered, Verb, names, require_within, writer_of
from onnxtile.system.dataclass import dataclass
from onnxtile.system.registry import late

ENDINGS = (".csv", ".json")


@dataclass(frozen=True)
class InspectOptions(SizeOptions):
    """The options of `inspect`."""

    model: ModelArgument
    _: KW_ONLY
    training: Annotated[bool, Option("list the activations that a backward pass keeps")] = False
    tree: Annotated[bool, Option("the tree of modules, with sums over their nodes")] = False
    top: Annotated[int | None, Option("list only the N nodes that cost most", "N", kind=values.COUNT)] = None
    by: Annotated[
        Literal["bytes", "macs", "flops", "weights"] | None,
        Option("cost by which nodes are listed, the largest first", default="bytes"),
    ] = None


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
        onnxtile inspect model.onnx --tree
        onnxtile inspect model.onnx --top 10 --by bytes
        onnxtile inspect model.onnx --emit nodes.csv --training
        onnxtile inspect model.onnx --trace Softmax -o activations.npz
    """

    _: KW_ONLY
    trace: Annotated[
        tuple[str, ...],
        Option("run the model, and show the outputs of these nodes", "NODE|OP|QUERY", kind=values.TEXTS),
    ] = ()
    output: Annotated[str | None, Option("write the traced outputs", "FILE.npz", ("-o", "--output"), WRITING)] = None


def _require(options: InspectStep) -> None:
    if not isinstance(options, InspectCommand):
        return
    if options.trace:
        allowed = names(TraceOptions, ReportOptions) | {"trace", "output"}
        message, hint = "{option} does not go with {trace}, which runs the model", "leave one of the two out"
    else:
        allowed = names(InspectStep, ReportOptions)
        message, hint = "{option} is for {trace}", "inspect runs nothing without it; --emit writes the nodes"
    require_within(options, allowed, message, hint)


def _prepare(_options: InspectStep, paths: Sequence[Path]) -> Rendered:
    writers = {path: writer_of("inspect", path) for path in paths}
    return lambda content: {path: write(content, path) for path, write in writers.items()}


INSPECT = Verb(
    "inspect",
    InspectCommand,
    late("onnxtile.verbs.flows.inspect:run"),
    InspectStep,
    emits=_prepare,
    require=_require,
)
