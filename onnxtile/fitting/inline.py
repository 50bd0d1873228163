"""Calls of local functions, written out: what is inside them can be cut then."""

from __future__ import annotations

import onnx_ir as ir

from onnxtile.model.inlining import inline_calls
from onnxtile.model.unfold import is_kernel


def inline(model: ir.Model) -> None:
    """Write out the calls of local functions in `model` (in place); meta-ops that run as one kernel stay.

    A function that imports other operator versions than the model stays, too.
    """
    imports = model.graph.opset_imports

    def is_written_out(function: ir.Function) -> bool:
        same = all(imports.get(domain, version) == version for domain, version in function.opset_imports.items())
        return same and not is_kernel(function)

    if any(map(is_written_out, model.functions.values())):
        inline_calls(model, is_written_out)
