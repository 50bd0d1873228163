"""Operator names: ONNX's own, Aidge's as aliases, meta-ops, and `domain::Type`."""

from __future__ import annotations

import difflib
from collections.abc import Collection
from functools import cache
from typing import TypeAlias

import onnx

from onnxtile import keys
from onnxtile.errors import QueryError
from onnxtile.query.program import nodes_of
from onnxtile.query.syntax import ANY_NODE, PRODUCER, Query

OpType: TypeAlias = tuple[str, str]
"""Domain and operator; the standard domain is ""."""

ALIASES = {
    "ArgMax": "ArgMax",
    "AvgPooling1D": "AveragePool",
    "AvgPooling2D": "AveragePool",
    "AvgPooling3D": "AveragePool",
    "BatchNorm2D": "BatchNormalization",
    "Conv1D": "Conv",
    "Conv2D": "Conv",
    "Conv3D": "Conv",
    "ConvDepthWise1D": "Conv",
    "ConvDepthWise2D": "Conv",
    "ConvTranspose1D": "ConvTranspose",
    "ConvTranspose2D": "ConvTranspose",
    "FC": "Gemm",
    "GeLU": "Gelu",
    "GlobalAveragePooling": "GlobalAveragePool",
    "InstanceNorm": "InstanceNormalization",
    "LayerNorm": "LayerNormalization",
    "LeakyReLU": "LeakyRelu",
    "MaxPooling1D": "MaxPool",
    "MaxPooling2D": "MaxPool",
    "MaxPooling3D": "MaxPool",
    "PaddedConv1D": "Conv",
    "PaddedConv2D": "Conv",
    "PaddedConvDepthWise2D": "Conv",
    "PaddedAvgPooling2D": "AveragePool",
    "PaddedMaxPooling2D": "MaxPool",
    "ReLU": "Relu",
    "RMSNorm": "RMSNormalization",
    "SiLU": "Swish",
}
"""Names of Aidge's operators (0.10) that ONNX calls otherwise."""


@cache
def meanings(name: str) -> frozenset[OpType]:
    """Return the operators that `name` stands for in a query.

    A plain name is the operator of the standard domain, the meta-op of that name, or what Aidge calls so.
    """
    domain, separator, op_type = name.rpartition("::")
    if separator:
        return frozenset({("" if domain == "ai.onnx" else domain, op_type)})
    names = {("", name), (keys.DOMAIN, name)}
    return frozenset(names | {("", ALIASES[name])}) if name in ALIASES else frozenset(names)


@cache
def _standard_names() -> frozenset[str]:
    return frozenset(schema.name for schema in onnx.defs.get_all_schemas() if schema.domain in {"", "ai.onnx"})


def require_known(query: Query, others: Collection[str]) -> None:
    """Raise QueryError for an operator name that no schema, no alias and none of `others` knows, with the nearest that is known."""
    known = {*_standard_names(), *ALIASES, *others, ANY_NODE, PRODUCER}
    for node in (node for clause in query.clauses for node in nodes_of(clause)):
        if node.type in known or "::" in node.type:
            continue
        by_folded = {name.lower(): name for name in sorted(known)}
        near = difflib.get_close_matches(node.type.lower(), by_folded, n=1, cutoff=0.5)
        hint = (
            f"did you mean {by_folded[near[0]]}?" if near else "an operator of another domain is written domain::Type"
        )
        start = node.span[0]
        raise QueryError(f"no operator is called {node.type!r}", query.text, (start, start + len(node.type)), hint=hint)
