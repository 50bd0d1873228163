"""unfuse: undo fuse."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from onnxtile.common_options import ModelArgument, VerifyOptions, WriteOptions
from onnxtile.declare.option import declared
from onnxtile.declare.verb import Outcome, Verb

if TYPE_CHECKING:
    from onnxtile.verbs.flows.unfusing import UnfuseResult


@dataclass(frozen=True)
class UnfuseOptions(VerifyOptions):
    """The options of `unfuse`."""

    model: ModelArgument


@dataclass(frozen=True)
class UnfuseCommand(WriteOptions, UnfuseOptions):
    """Undo fuse: restore the original model.

    Examples:
        onnxtile unfuse model.fused.onnx -o original.onnx
    """


@declared(UnfuseOptions)
def unfuse(options: UnfuseOptions) -> UnfuseResult:
    """Undo all that fuse did to `model`, and take the marks of a plan off.

    Raises UsageError where there is nothing to undo, ModelError, Mismatch.
    """
    from onnxtile.verbs.flows import unfusing

    return unfusing.unfuse(options)


def _run(options: UnfuseOptions) -> Outcome:
    from onnxtile.verbs.flows import unfusing

    result = unfusing.unfuse(options)
    return Outcome(result, "unfuse", result.model)


UNFUSE = Verb("unfuse", UnfuseCommand, _run, UnfuseOptions, writes=lambda _options: "unfused")
