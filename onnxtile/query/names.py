"""Operator names: ONNX's own, Aidge's as aliases, meta-ops, and `domain::Type`."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterator
from functools import cache
from typing import TypeAlias

import onnx

from onnxtile.model import keys
from onnxtile.query.language import (
    ANY_NODE,
    PRODUCER,
    Comparison,
    ElementOf,
    Expression,
    ListOf,
    Logic,
    Name,
    Node,
    Not,
    PropertyOf,
    Query,
)
from onnxtile.query.tests import WORDS, names_of
from onnxtile.system.errors import QueryError

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

    A plain name is the operator of the standard domain, the meta-op of that name, or what Aidge calls so; see `in_any_domain`.
    """
    domain, separator, op_type = name.rpartition("::")
    if separator:
        return frozenset({("" if domain == "ai.onnx" else domain, op_type)})
    names = {("", name), (keys.DOMAIN, name)}
    return frozenset(names | {("", ALIASES[name])}) if name in ALIASES else frozenset(names)


@cache
def in_any_domain(name: str) -> bool:
    """Tell whether a plain name may be an operator of any domain: where neither ONNX nor Aidge has one of that name."""
    return "::" not in name and name not in ALIASES and name not in _standard_names()


@cache
def _with_schema() -> frozenset[OpType]:
    return frozenset((schema.domain, schema.name) for schema in onnx.defs.get_all_schemas())


@cache
def _standard_names() -> frozenset[str]:
    return frozenset(name for domain, name in _with_schema() if domain in {"", "ai.onnx"})


def require_known(query: Query, others: Collection[str]) -> None:
    """Raise QueryError for an operator name that no schema, no alias and none of `others` knows, with the nearest that is known.

    The same holds for what a test asks of an operator of the standard domain.
    """
    for node in query.nodes:
        if not _is_known(node.type, others):
            known = {*_standard_names(), *ALIASES, *others, ANY_NODE, PRODUCER}
            hint = _nearest(node.type, known) or "an operator of another domain is written domain::Type"
            start = node.span[0]
            span = (start, start + len(node.type))
            raise QueryError(f"no operator is called {node.type!r}", query.text, span, hint=hint)
        _require_known_words(node, query.text)


def _is_known(type_: str, others: Collection[str]) -> bool:
    return (
        "::" in type_
        or type_ in {ANY_NODE, PRODUCER}
        or any(type_ in names for names in (_standard_names(), ALIASES, others))
    )


def _require_known_words(node: Node, text: str) -> None:
    for name in _asked(node.test):
        words = _words(node.type)
        if words is not None and name.value not in words:
            hint = _nearest(name.value, words) or f"it has {', '.join(sorted(words))}"
            raise QueryError(f"{node.type} has no {name.value!r}", text, name.span, hint=hint)


def _nearest(name: str, known: Collection[str]) -> str | None:
    """Return the nearest known name to `name`: the shortest that begins with it, else the most similar."""
    by_folded = {candidate.lower(): candidate for candidate in sorted(known)}
    folded = name.lower()
    begun = sorted(
        (candidate for candidate in by_folded if folded and candidate.startswith(folded)),
        key=lambda candidate: (len(candidate), candidate),
    )
    near = begun[:1] or difflib.get_close_matches(folded, by_folded, n=1, cutoff=0.5)
    return f"did you mean {by_folded[near[0]]}?" if near else None


@cache
def _words(type_: str) -> frozenset[str] | None:
    """Return the attributes that a test may read of a node of type `type_`; None without a schema."""
    if type_ in {ANY_NODE, PRODUCER}:
        return None
    names = [names_of(domain, op_type) for domain, op_type in meanings(type_) if (domain, op_type) in _with_schema()]
    return frozenset(WORDS).union(*names) if names else None


def _asked(test: Expression | None) -> Iterator[Name]:
    """Yield the names in a test that stand for something of the node itself."""
    match test:
        case Name():
            yield test
        case ElementOf() | PropertyOf():
            yield from _asked(test.base)
        case Comparison():
            yield from _asked(test.left)
            yield from _asked(test.right)
        case Not():
            yield from _asked(test.operand)
        case Logic() | ListOf():
            for part in test.operands if isinstance(test, Logic) else test.items:
                yield from _asked(part)
        case _:
            return
