"""Sessions of models in memory, without further copies of the weights."""

from __future__ import annotations

from contextlib import suppress
from typing import TypeAlias

import onnx_ir as ir

from onnxtile.errors import ModelError
from onnxtile.model.save import external_folder, inline_bytes, save, to_bytes
from onnxtile.model.split_session import SplitSession, may_split
from onnxtile.model.temporary import temporary_folder
from onnxtile.runtime import Session

AnySession: TypeAlias = Session | SplitSession
"""A model loaded as a whole, or in pieces."""

_MOST_FROM_MEMORY = 2**25
"""Bytes of weights of a model that onnxruntime is given in memory. It holds the weights of such a model about four times."""


def session_of(model: ir.Model) -> AnySession:
    """Return a session of `model`, which stays as it is.

    A model with many nodes is run in pieces where it can be. One with many weights goes through a temporary file, which is gone when this
    returns: onnxruntime then holds them once. Raises ModelError with onnxruntime's reason, and UsageError where the file cannot be written.
    """
    if may_split(model):
        with suppress(ModelError):  # loaded whole, it runs, or the reason is that of the whole
            return SplitSession(model)
    folder = external_folder(model)
    if folder is not None or inline_bytes(model) <= _MOST_FROM_MEMORY:
        return Session(to_bytes(model), external=folder)
    with temporary_folder() as place:
        path = place / "model.onnx"
        save(model, path)
        return Session(path)
