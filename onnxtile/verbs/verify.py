"""verify: run two models and compare every output."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import KW_ONLY
from typing import Annotated, Any, Literal

from onnxtile.common_options import InputOptions, ModelArgument, ReportOptions, RunWords, Source, counted_runs
from onnxtile.declare import values
from onnxtile.declare.verb import Option, Positional, Verb
from onnxtile.system.dataclass import dataclass
from onnxtile.system.registry import late


@dataclass(frozen=True)
class CompareOptions(InputOptions):
    """The options of `verify`."""

    model: ModelArgument
    other: Annotated[Source, Positional("OTHER", "the model to compare with", values.SOURCE)]
    _: KW_ONLY
    runs: Annotated[RunWords | None, counted_runs("sets of random inputs", 2)] = None
    seed: Annotated[int, Option("seed of the random inputs", "N", kind=values.NATURAL)] = 0
    edge: Annotated[bool, Option("also zeros, ones, large, small, negative, NaN, infinity")] = False
    tolerance: Annotated[
        Literal["1step"] | None,
        Option("let quantised outputs be one step of quantisation off", default="that of floats"),
    ] = None
    bisect: Annotated[bool, Option("find the first value that differs, and its rewrite")] = False


@dataclass(frozen=True)
class VerifyCommand(ReportOptions, CompareOptions):
    """Run two models and compare every output; exit 1 when they differ.

    Examples:
        onnxtile verify a.onnx b.onnx --dim batch=2
        onnxtile verify a.onnx b.onnx --inputs real.npz --bisect
        onnxtile verify a.onnx b.onnx --inputs ids=0:30522 --edge
    """


def _operands(source: Any, model: Any) -> Mapping[str, Any]:
    """Compare the model as it is now with the one that the pipeline read."""
    return {"model": source, "other": model}


VERIFY = Verb("verify", VerifyCommand, late("onnxtile.verbs.flows.verify:run"), CompareOptions, operands=_operands)
