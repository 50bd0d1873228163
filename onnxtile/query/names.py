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

_AIDGE = {
    "AveragePool": ("AvgPooling1D", "AvgPooling2D", "AvgPooling3D", "PaddedAvgPooling2D"),
    "BatchNormalization": ("BatchNorm1D", "BatchNorm2D", "BatchNorm3D"),
    "Conv": (
        *("Conv1D", "Conv2D", "Conv3D", "ConvDepthWise1D", "ConvDepthWise2D", "ConvDepthWise3D"),
        *("PaddedConv1D", "PaddedConv2D", "PaddedConv3D", "PaddedConvDepthWise1D", "PaddedConvDepthWise2D"),
    ),
    "ConvTranspose": (
        *("ConvTranspose1D", "ConvTranspose2D", "ConvTranspose3D"),
        *("PaddedConvTranspose1D", "PaddedConvTranspose2D", "PaddedConvTranspose3D"),
    ),
    "DequantizeLinear": ("Dequantizer",),
    "Gelu": ("GeLU",),
    "Gemm": ("FC",),
    "GlobalAveragePool": ("GlobalAveragePooling",),
    "InstanceNormalization": ("InstanceNorm",),
    "LayerNormalization": ("LayerNorm",),
    "LeakyRelu": ("LeakyReLU",),
    "Log": ("Ln",),
    "LSTM": ("LSTM_ONNX",),
    "MaxPool": ("MaxPooling1D", "MaxPooling2D", "MaxPooling3D", "PaddedMaxPooling2D"),
    "QuantizeLinear": ("Quantizer",),
    "Relu": ("ReLU",),
    "RMSNormalization": ("RMSNorm",),
    "ScatterElements": ("Scatter",),
    "Swish": ("SiLU",),
}

ALIASES = {name: onnx_name for onnx_name, names in _AIDGE.items() for name in names}
"""Names of Aidge's operators (0.10), and two in their manner (RMSNorm, SiLU), with what ONNX calls them.

Some say more in Aidge than here, where they stand for every node of the operator: the rank (1D, 2D, 3D); `Padded`, that there are
pads, and its absence that there are none; `ConvDepthWise`, that group equals the channels; `FC`, a Gemm with transB=1, alpha=1 and a
constant weight; `LayerNorm`, that there is a bias. A test says it: `Conv2D[group == 1]`, `FC[transB == 1]`.
"""


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
