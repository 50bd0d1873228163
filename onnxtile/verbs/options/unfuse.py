"""The options of unfuse."""

from __future__ import annotations

from dataclasses import dataclass

from onnxtile.common_options import ModelArgument, VerifyOptions, WriteOptions


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
