"""unfuse: undo fuse."""

from __future__ import annotations

from onnxtile.common_options import ModelArgument, VerifyOptions, WriteOptions
from onnxtile.declare.verb import Verb
from onnxtile.system.dataclass import dataclass
from onnxtile.system.registry import late


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


UNFUSE = Verb(
    "unfuse",
    UnfuseCommand,
    late("onnxtile.verbs.flows.fuse:run_unfuse"),
    UnfuseOptions,
    writes=lambda _options: "unfused",
)
