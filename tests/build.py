"""Small models for tests: from ONNX text, and from nodes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import onnx
import onnx.compose
import onnx_ir as ir
from onnx import helper, numpy_helper

from onnxtile.declare.layout_rules import LayoutTable

Dims: TypeAlias = Sequence[int | str | None] | None
Values: TypeAlias = Iterable[onnx.ValueInfoProto] | Mapping[str, Any]
"""Inputs or outputs of a graph, by name: their dimensions where they are floats, else the element type and the dimensions."""
Text: TypeAlias = Callable[..., onnx.ModelProto]
"""What reads the text of a model: a fixture of several rooms."""
ValueOf: TypeAlias = Callable[[ir.Model, str], ir.Value]
"""What finds a value of a model by its name."""
Find: TypeAlias = Callable[[str], Path]
"""What finds the file of a real model by its name."""


def with_layout(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return options of a plan, with pins, places, kept tensors, workspaces and whole buffers among them as its layout."""
    rules = {name: options[name] for name in LayoutTable.__annotations__ if name in options}
    others = {name: value for name, value in options.items() if name not in rules}
    return {**others, "layout": rules} if rules else others


def parsed(text: str, *functions: str, opset: int = 17, ir_version: int = 10, **domains: int) -> onnx.ModelProto:
    """Return the model of ONNX text: a graph, and functions that it calls. `domains` have the versions of other operator sets."""
    versions = ", ".join(f'"{name.replace("_", ".")}" : {version}' for name, version in {"": opset, **domains}.items())
    return onnx.parser.parse_model(
        f"<ir_version: {ir_version}, opset_import: [{versions}]> {text} {' '.join(functions)}"
    )


def model(
    nodes: Iterable[onnx.NodeProto],
    inputs: Values,
    outputs: Values,
    constants: Iterable[onnx.TensorProto] | Mapping[str, Any] = (),
    *,
    functions: Sequence[onnx.FunctionProto] = (),
    opset: int = 17,
    ir_version: int = 10,
    **domains: int,
) -> onnx.ModelProto:
    """Return the model of nodes; `constants` by name are arrays, or what numpy makes of them."""
    arrays = constants.items() if isinstance(constants, Mapping) else ()
    tensors = [numpy_helper.from_array(np.asarray(array), name) for name, array in arrays] if arrays else [*constants]
    graph = helper.make_graph(list(nodes), "g", _values(inputs), _values(outputs), tensors)
    opsets = [helper.make_opsetid(name.replace("_", "."), version) for name, version in {"": opset, **domains}.items()]
    return helper.make_model(graph, opset_imports=opsets, ir_version=ir_version, functions=functions)


def side_by_side(models: Iterable[onnx.ModelProto]) -> onnx.ModelProto:
    """Return one model of the graphs of several of the same operator sets; all names of the first begin with "m0_", and so on."""
    found = onnx.ModelProto()
    for number, one in enumerate(models):
        if not number:
            found.CopyFrom(one)
            found.ClearField("graph")
            found.graph.name = one.graph.name
        # onnx forgets the constants that bodies read.
        constants = {tensor.name: f"m{number}_{tensor.name}" for tensor in one.graph.initializer}
        graph = onnx.compose.add_prefix_graph(one.graph, f"m{number}_", name_map=constants)
        for field in ("node", "input", "output", "initializer", "value_info"):
            getattr(found.graph, field).extend(getattr(graph, field))
    return found


def _values(values: Values) -> list[onnx.ValueInfoProto]:
    if not isinstance(values, Mapping):
        return list(values)
    return [helper.make_tensor_value_info(name, *_typed(of)) for name, of in values.items()]


def _typed(of: Any) -> tuple[int, Dims]:
    """Return the element type and the dimensions: a pair with dimensions behind is both."""
    is_pair = isinstance(of, tuple) and len(of) == 2 and isinstance(of[1], list | tuple)
    return of if is_pair else (onnx.TensorProto.FLOAT, of)
