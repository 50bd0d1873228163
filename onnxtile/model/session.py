"""Sessions of models in memory, without further copies of the weights."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any, TypeAlias

import onnx_ir as ir

from onnxtile.errors import ModelError
from onnxtile.model.constants import Constants
from onnxtile.model.draws import RandomNodes, may_draw
from onnxtile.model.save import external_folder, inline_bytes, save, to_bytes
from onnxtile.model.split_session import SplitSession, may_split
from onnxtile.model.temporary import temporary_folder
from onnxtile.model.walk import all_nodes
from onnxtile.runtime import Session

AnySession: TypeAlias = Session | SplitSession
"""A model loaded as a whole, or in pieces."""


class RepeatableSession:
    """A model with random operators, loaded anew for each run but the first.

    The first run of a session of onnxruntime draws the same numbers each time from one seed; a further run goes on behind them.
    """

    def __init__(self, model: ir.Model) -> None:
        self._model = model
        self._unused: AnySession | None = session_of(model)

    def run(self, feeds: Mapping[str, Any]) -> dict[str, Any]:
        """Run once, as `Session.run`."""
        session, self._unused = self._unused or session_of(self._model), None
        return session.run(feeds)


ModelRunner: TypeAlias = AnySession | RepeatableSession
"""What runs a model."""


def repeatable_session(model: ir.Model) -> ModelRunner:
    """Return a session of `model` in which each run draws the same numbers, where its random operators have seeds."""
    is_random = any(map(may_draw, all_nodes(model))) and RandomNodes(model, Constants(model)).themselves
    return RepeatableSession(model) if is_random else session_of(model)


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
