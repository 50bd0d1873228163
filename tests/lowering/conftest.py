"""The bench on which small graphs are lowered."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from onnxtile import api
from onnxtile.verbs.flows.results import FuseResult

TYPES = {"float": TensorProto.FLOAT, "float16": TensorProto.FLOAT16, "bfloat16": TensorProto.BFLOAT16}


@dataclass(frozen=True)
class Bench:
    """Makes models of ONNX text and lowers them."""

    @staticmethod
    def model(
        body: str,
        constants: Mapping[str, object],
        *,
        x: str = "float[2,3,8]",
        y: str = "float[2,3,8]",
        inputs: str = "",
        opset: int = 17,
        dtype: str = "float",
    ) -> onnx.ModelProto:
        """Return the model y = body(x, constants); floats are of `dtype`, as are constants that are Python floats or lists of them."""
        text = f"<ir_version: 10, opset_import: ['': {opset}]> g ({x} x{inputs}) => ({y} y) {{ {body} }}".replace(
            "'", '"'
        )
        proto = onnx.parser.parse_model(text)
        for name, value in constants.items():
            array = np.asarray(value)
            tensor = numpy_helper.from_array(array if array.dtype.kind != "f" else array.astype(np.float32), name)
            proto.graph.initializer.append(tensor)
        return retyped(proto, TYPES[dtype])

    @staticmethod
    def lower(
        model: onnx.ModelProto,
        pattern: str | None,
        target: str = "onnx",
        *,
        verify: bool = True,
        edge: str = "kinder",
    ) -> FuseResult:
        """Fuse `model` with one pattern of the library, or all, and lower it."""
        result = api.fuse(model, () if pattern is None else (pattern,), lower=target, verify=verify, edge=edge)
        if edge != "any" and (pattern is None or pattern.isidentifier()):
            require_documented(result)
        return result


def require_documented(result: FuseResult) -> None:
    """Assert that docs/lowerings.md names each edge row on which a lowered site differs."""
    page = (Path(__file__).parents[2] / "docs/lowerings.md").read_text(encoding="utf-8")
    _, kinder, head = page.partition("| lowering | kinder | no number | beyond range |")
    rows = [
        [cell.strip(" `") for cell in line.strip("|").split("|")] for line in head.partition("\n\n")[0].splitlines()
    ]
    told = {
        row[0]: dict(zip(("kinder", "no number", "beyond range"), row[1:], strict=True))
        for row in rows
        if len(row) == 4
    }
    for site in result.lowered:
        for effect, numbers in site.edges.items():
            assert kinder and {*numbers} <= {*told[site.meta_op][effect].split(", ")}, (site, told.get(site.meta_op))


def retyped(proto: onnx.ModelProto, dtype: int) -> onnx.ModelProto:
    """Return `proto` with every float of the graph made a `dtype`; Casts stay what they are."""
    if dtype == TensorProto.FLOAT:
        return proto
    for value in (*proto.graph.input, *proto.graph.output):
        if value.type.tensor_type.elem_type == TensorProto.FLOAT:
            value.type.tensor_type.elem_type = dtype
    numpy_type = (
        np.dtype(ml_dtypes.bfloat16) if dtype == TensorProto.BFLOAT16 else helper.tensor_dtype_to_np_dtype(dtype)
    )
    for tensor in proto.graph.initializer:
        if tensor.data_type == TensorProto.FLOAT and not tensor.name.startswith("wide"):
            array = numpy_helper.to_array(tensor).astype(numpy_type)
            tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))
    return proto


@pytest.fixture(scope="session")
def bench() -> Bench:
    return Bench()


@pytest.fixture(scope="session")
def operators() -> Callable[[FuseResult], list[str]]:
    """Return the names of the operators of the main graph, those of a domain with it."""

    def names(result: FuseResult) -> list[str]:
        return [f"{n.domain}.{n.op_type}" if n.domain else n.op_type for n in result.model.graph]

    return names


@pytest.fixture(scope="session")
def reasons() -> Callable[[FuseResult], list[str]]:
    """Return why sites stayed calls."""
    return lambda result: [site.reason for site in result.lowered if not site.operator]
