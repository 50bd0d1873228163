"""Constants read one after another, so that the bytes of one only are in memory."""

from __future__ import annotations

from contextlib import suppress

import onnx_ir as ir

from onnxtile.runtime import Array


class ConstantReader:
    """The one constant whose bytes are at hand: blocks are read when they are written, one constant after another."""

    def __init__(self) -> None:
        self._tensor: ir.TensorProtocol | None = None
        self._array: Array | None = None

    def array(self, tensor: ir.TensorProtocol) -> Array:
        """Return the elements of `tensor`, and keep them until another constant is read; the mapped file of the last one is closed."""
        if self._array is None or self._tensor is not tensor:
            self._let_go()
            self._tensor, self._array = tensor, tensor.numpy()
        return self._array

    def _let_go(self) -> None:
        self._array = None
        if isinstance(self._tensor, ir.ExternalTensor):
            # A mapped file with other readers stays open until the last of them ends.
            with suppress(BufferError):
                self._tensor.release()
