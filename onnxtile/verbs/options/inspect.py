"""The options of inspect."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Annotated

from onnxtile.common_options import InputOptions, ModelArgument, ReportOptions, SizeOptions
from onnxtile.declare import values
from onnxtile.declare.option import WRITING, Choices, Option, Positional

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
