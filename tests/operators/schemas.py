"""The operators that there are: those of onnx's schemas, in all versions, and those of onnxruntime's."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import onnx
import onnxruntime
import pytest

Tensor = np.ndarray[Any, np.dtype[Any]]

_LAYOUTS = {"com.microsoft.nchwc", "com.ms.internal.nhwc"}
"""Domains of operators that onnxruntime puts into a model while it loads it: no file has them."""


class Schema(NamedTuple):
    """One version of an operator: the names of its operands, and whether an attribute holds a body."""

    name: str
    domain: str
    since: int
    operands: tuple[str, ...]
    has_body: bool
    may_differ: bool


def named(domain: str, operator: str) -> str:
    """Return the name of an operator as the package's tables have it."""
    return f"{domain}::{operator}" if domain not in {"", "ai.onnx"} else operator


@cache
def schemas() -> tuple[Schema, ...]:
    """Return all versions of all operators."""
    return (*_of_onnx(), *_of_onnxruntime())


def _of_onnx() -> Iterator[Schema]:
    every: list[Any] = list(onnx.defs.get_all_schemas_with_history())
    for one in every:
        graphs = any(attribute.type == onnx.defs.OpSchema.AttrType.GRAPH for attribute in one.attributes.values())
        differs = one.node_determinism == onnx.defs.OpSchema.NodeDeterminism.NonDeterministic
        operands = tuple(operand.name for operand in one.inputs)
        yield Schema(named(one.domain, one.name), one.domain, one.since_version, operands, graphs, differs)


def _of_onnxruntime() -> Iterator[Schema]:
    for one in onnxruntime.capi.onnxruntime_pybind11_state.get_all_operator_schema():
        if one.domain in _LAYOUTS:
            continue
        graphs = any(str(attribute.type).endswith("GRAPH") for attribute in one.attributes.values())
        operands = tuple(operand.name for operand in one.inputs)
        yield Schema(named(one.domain, one.name), one.domain, one.since_version, operands, graphs, False)


@cache
def operators() -> frozenset[str]:
    """Return the names of all operators."""
    return frozenset(schema.name for schema in schemas())


@cache
def with_kernel() -> frozenset[str]:
    """Return the operators that onnxruntime runs on a CPU: by a kernel, or as the function that ONNX defines."""
    kernels = onnxruntime.capi.onnxruntime_pybind11_state.get_all_opkernel_def()
    own = {named(one.domain, one.op_name) for one in kernels if one.provider == "CPUExecutionProvider"}
    every: list[Any] = list(onnx.defs.get_all_schemas())
    plain = {named(one.domain, one.name) for one in every if one.has_function or one.has_context_dependent_function}
    return operators() & (own | plain)


class Example(NamedTuple):
    """A model of one node from onnx's own tests, with operands and results."""

    model: onnx.ModelProto
    operands: tuple[Tensor, ...]
    results: tuple[Tensor, ...]

    @property
    def node(self) -> onnx.NodeProto:
        """The node."""
        return self.model.graph.node[0]

    @property
    def name(self) -> str:
        """The name of the operator."""
        return named(self.node.domain, self.node.op_type)

    @property
    def feeds(self) -> dict[str, Tensor]:
        """The operands by name."""
        return dict(zip((value.name for value in self.model.graph.input), self.operands, strict=True))


def _zeros(
    padded: Tensor, x_shape: Sequence[int], _kernel: Any, _strides: Any, sizes: Sequence[int], *_: Any, **__: Any
) -> Tensor:
    """Return zeros in place of the pool that onnx computes window by window."""
    return np.zeros([*x_shape[:2], *sizes], padded.dtype)


@cache
def examples() -> tuple[Example, ...]:
    """Return onnx's examples of nodes on tensors of numbers; results of pools are zeros."""
    # The package warns while it makes them, and pools of three axes take it seconds: shapes and types are what counts here.
    import warnings

    from onnx.reference.ops import _op_list, op_pool_common  # all operators, before their pool is another

    assert _op_list
    with warnings.catch_warnings(), pytest.MonkeyPatch.context() as patch:
        warnings.simplefilter("ignore")
        patch.setattr(op_pool_common, "pool", _zeros)
        from onnx.backend.test.case.node import collect_testcases

        cases = collect_testcases(None)
    found = []
    for case in cases:
        if case.model is None or len(case.model.graph.node) != 1 or not case.data_sets:
            continue
        operands, results = case.data_sets[0]
        if all(isinstance(one, np.ndarray) and one.dtype.kind in "fiub" for one in (*operands, *results)):
            found.append(Example(case.model, tuple(operands), tuple(results)))
    return tuple(found)
