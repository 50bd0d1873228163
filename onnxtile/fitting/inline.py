"""Calls of local functions, written out: what is inside them can be cut then."""

from __future__ import annotations

import onnx_ir as ir

from onnxtile.fusion.written_out import calls_inside, renew_records
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

    functions = [function for function in model.functions.values() if is_written_out(function)]
    if functions:
        inside = calls_inside(model, functions)
        inline_calls(model, is_written_out)
        renew_records(model, inside)
