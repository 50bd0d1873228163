"""The plain run of the whole model in onnxruntime's own memory, to compare a run inside the arena with."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import onnx_ir as ir

from onnxtile.model.save import raise_ir_version
from onnxtile.model.session import session_of
from onnxtile.model.shapes import Shapes
from onnxtile.model.unfold import fold
from onnxtile.planning.layout.bytes import tensor_bytes
from onnxtile.planning.proof.kernel import contradicts
from onnxtile.planning.proof.memory import TensorMemory
from onnxtile.runtime import Array


class PlainRun:
    """`model`, which stays unchanged, loaded as a whole. Raises ModelError where onnxruntime refuses it.

    Some kernels round differently at another distance from a multiple of 64 bytes. `addresses` are those of inputs in the arena, by name:
    such an input has the same distance here, all others are at a multiple.
    """

    def __init__(self, model: ir.Model, shapes: Shapes, addresses: Mapping[str, int] | None = None) -> None:
        copy = model.clone()
        fold(copy)
        raise_ir_version(copy)
        for value in copy.graph.outputs:
            value.shape = None  # which may be declared wrongly: onnxruntime warns of that, but does not write in place
        self._session = session_of(copy)
        if contradicts(self._session, {value.name or "": value for value in model.graph.outputs}, shapes):
            for value in copy.graph.inputs:
                value.shape = None if value.shape is None else ir.Shape([None] * len(value.shape))
            self._session = session_of(copy)
        self._inputs = {value.name or "": shapes.dtype(value) for value in model.graph.inputs}
        self._outputs = dict.fromkeys(model.graph.outputs)
        self._shapes = shapes
        self._addresses = addresses or {}

    def run(self, feeds: Mapping[str, Array]) -> dict[str, Any]:
        """Run once; return each graph output by name: a TensorMemory, or an ordinary value where it has no fixed bytes.

        Where a node makes each output and all bytes are known they are written in place: elements of less than a byte have no
        other way out of onnxruntime.
        """
        inputs = {name: self._placed(name, TensorMemory.of(array, self._inputs[name])) for name, array in feeds.items()}
        outputs = {value.name or "": self._workspace_row(value) for value in self._outputs}
        if all(isinstance(site, TensorMemory) for site in (*inputs.values(), *outputs.values())):
            self._session.run_in_place(
                {name: site.binding for name, site in inputs.items()},
                {name: site.binding for name, site in outputs.items() if site is not None},
            )
            return dict(outputs)
        dtypes = {value.name or "": self._shapes.dtype(value) for value in self._outputs}
        return {name: TensorMemory.of(value, dtypes[name]) for name, value in self._session.run(feeds).items()}

    def _placed(self, name: str, value: Any) -> Any:
        """Return the input `value` at the distance from a multiple of 64 that it has in the arena, if it lies there."""
        return value.at(self._addresses.get(name, 0)) if isinstance(value, TensorMemory) else value

    def _workspace_row(self, value: ir.Value) -> TensorMemory | None:
        """Return memory for the output `value`; None where its bytes are not known, or no node writes them."""
        dtype, shape, size = self._shapes.dtype(value), self._shapes.sizes(value), tensor_bytes(value, self._shapes)
        if dtype is None or shape is None or size is None or value.producer() is None or self._shapes.is_bound(value):
            return None
        return TensorMemory.empty(dtype, shape, size)
