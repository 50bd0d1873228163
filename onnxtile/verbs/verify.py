"""verify: run two models and compare every output."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

from onnxtile.common_options import InputOptions, ModelArgument, ReportOptions, Source
from onnxtile.declare import values
from onnxtile.declare.option import Option, Positional, declared
from onnxtile.declare.verb import Outcome, Verb

if TYPE_CHECKING:
    from onnxtile.verification.trials import Verdict


@dataclass(frozen=True)
class CompareOptions(InputOptions):
    """The options of `verify`."""

    model: ModelArgument
    other: Annotated[Source, Positional("OTHER", "the model to compare with", values.SOURCE)]
    _: KW_ONLY
    runs: Annotated[int, Option("sets of random inputs", "N", kind=values.RUNS)] = 2
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
        onnxtile verify a.onnx b.onnx --range ids=0:30522 --edge
    """


@declared(CompareOptions)
def verify(options: CompareOptions) -> Verdict:
    """Run both models on the same inputs and compare every output; a difference is in the result, not an error.

    A symbol of `dims` need be in one of the models only; a size that one model leaves free is what the other fixes. Raises ModelError
    where onnxruntime refuses one of them or they take different inputs, and UsageError.
    """
    from onnxtile.verbs.flows import comparing

    return comparing.verify(options)


def _run(options: CompareOptions) -> Outcome:
    from onnxtile.verbs.flows import comparing
    from onnxtile.verbs.flows.stage import nothing_compared

    verdict = comparing.verify(options)
    reason = None if verdict.equal else f"the outputs differ, by {verdict.max_rel:.3g} of their range"
    if verdict.is_empty:
        reason = f"no output could be compared: {nothing_compared(verdict)}"
    return Outcome(verdict, "verify", reason=reason)


def _operands(source: Any, model: Any) -> Mapping[str, Any]:
    """Compare the model as it is now with the one that the pipeline read."""
    return {"model": source, "other": model}


VERIFY = Verb("verify", VerifyCommand, _run, CompareOptions, operands=_operands)
