"""verify: run two models and compare every output."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from onnxtile.declare.option import declared
from onnxtile.declare.verb import Outcome, Verb
from onnxtile.verbs.options.verify import CompareOptions, VerifyCommand

if TYPE_CHECKING:
    from onnxtile.verification.trials import Verdict


@declared(CompareOptions)
def verify(options: CompareOptions) -> Verdict:
    """Run both models on the same inputs and compare every output; a difference is in the result, not an error.

    A symbol of `dims` need be in one of the models only; a size that one model leaves free is what the other fixes. Raises ModelError
    where onnxruntime refuses one of them or they take different inputs, and UsageError.
    """
    from onnxtile.verbs.flows import checking as comparing

    return comparing.verify(options)


def _run(options: CompareOptions) -> Outcome:
    from onnxtile.verbs.flows import checking as comparing
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
