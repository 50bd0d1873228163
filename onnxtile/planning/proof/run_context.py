"""The common part of the runs of all graphs of a model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import onnx_ir as ir

from onnxtile.planning.layout.aliases.find import LayoutFacts
from onnxtile.planning.proof.kernel import Kernels
from onnxtile.planning.proof.memory import ArenaMemory, TensorMemory


@dataclass(frozen=True)
class RunContext:
    """The facts of a model, the arenas by name, and the kernels.

    Without `shows_views` every node runs, also one whose results the plan takes for views. With `repeats`, each different kernel that
    shares bytes runs on other values first.
    """

    facts: LayoutFacts
    blocks: Mapping[str, ArenaMemory]
    kernels: Kernels
    shows_views: bool = True
    repeats: bool = False

    def held(self, found: Any, value: ir.Value) -> Any:
        """Return `found` as the copy of `value` outside the arena: a TensorMemory, unless `value` has no fixed bytes.

        It starts at a multiple of 64, like onnxruntime's own tensors; one that is a TensorMemory stays as it is.
        """
        if isinstance(found, TensorMemory):
            return found
        held = found if value in self.kernels.containers else TensorMemory.of(found, self.facts.shapes.dtype(value))
        return held.at(0) if isinstance(held, TensorMemory) else held
