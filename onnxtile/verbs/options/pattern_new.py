"""The options of pattern new."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from onnxtile.common_options import ModelArgument, ReportOptions, Source, WatchOptions
from onnxtile.declare import values
from onnxtile.declare.option import WRITING, Option, Positional


@dataclass(frozen=True)
class DraftOptions(WatchOptions):
    """The options of `draft_pattern`."""

    model: ModelArgument
    nodes: Annotated[str | Sequence[str], Positional("NODES", "names of nodes", values.TEXTS)]
    name: Annotated[str, Option("name of the meta-op", "NAME")] = "MyMetaOp"


@dataclass(frozen=True, kw_only=True)
class PatternNewCommand(ReportOptions):
    """Write the pattern for chosen nodes.

    Examples:
        onnxtile pattern new --from model.onnx --nodes Sigmoid_1,Mul_2 --name SiLU -o silu.toml
    """

    model: Annotated[Source, Option("model that has the nodes", "MODEL", ("--from",), kind=values.SOURCE)]
    nodes: Annotated[str, Option("names of the nodes, with commas between", "A,B,C")]
    name: Annotated[str, Option("name of the meta-op", "NAME")] = "MyMetaOp"
    output: Annotated[str | None, Option("output file", "FILE.toml", ("-o", "--output"), WRITING, default="stdout")] = (
        None
    )
