"""A residual sum and its normalisation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import onnx_ir as ir

from onnxtile import keys
from onnxtile.fuse.lower.contract import (
    FLOATS,
    ORT_DOMAIN,
    Argument,
    Lowering,
    Made,
    NotLowered,
    Operand,
    Proof,
    Setting,
    Site,
    Step,
    known_dims,
    require_type,
)
from onnxtile.fuse.lower.elementwise import value_of
from onnxtile.fuse.lower.norms import proved_norm, scale_of

_CENTRED = {"LayerNorm": True, "RMSNorm": False, "LayerNormalization": True, "RMSNormalization": False}
_CONTRIB = {True: "SkipLayerNormalization", False: "SkipSimplifiedLayerNormalization"}


@dataclass(frozen=True)
class _Skip:
    """The nodes of the body, and what they read: the two summands, and the other inputs of the normalisation."""

    add: ir.Node
    norm: ir.Node
    summands: tuple[Argument, Argument]
    others: tuple[Argument, ...]
    centred: bool


class SkipLayerNorm(Lowering):
    """SkipLayerNormalization and SkipSimplifiedLayerNormalization of onnxruntime's docs/ContribOperators.md; the standard has none."""

    name = "SkipLayerNorm"

    def to_onnx(self, site: Site) -> Proof:
        """Return the sum and the normalisation, where that is a standard operator already."""
        skip = _skip(site)
        if skip.norm.domain or skip.norm.op_identifier() in site.functions:
            raise NotLowered("no standard operator adds before it normalises")
        settings = _settings(skip.norm)
        add = Step("Add", tuple(value_of(summand) for summand in skip.summands), since=7)
        others = tuple(value_of(other) for other in skip.others)
        since = 17 if skip.centred else 23
        norm = Step(skip.norm.op_type, (Made(0), *others), settings, since=since)
        places = {skip.add.outputs[0]: Made(0), skip.norm.outputs[0]: Made(1)}
        return Proof((add, norm), tuple(places[value] for value in site.function.outputs), 1)

    def to_ort(self, site: Site) -> Proof:
        """Return the operator that does both, on operands of three axes and one shape."""
        skip = _skip(site)
        operator = _CONTRIB[skip.centred]
        dims = known_dims(site.results[0])
        for summand in skip.summands:
            require_type(operator, summand, FLOATS)
            if known_dims(summand) != dims or len(dims) != 3 or None in dims:
                raise NotLowered(f"{operator} adds values of one shape of three axes, not {list(known_dims(summand))}")
        epsilon, scale, bias = _norm_of(site, skip, operator)
        inputs: tuple[Operand, ...] = (*(value_of(s) for s in skip.summands), scale)
        inputs += (bias,) if bias is not None else ()
        reads_sum = skip.add.outputs[0] in site.function.outputs
        step = Step(
            operator,
            inputs,
            {"epsilon": epsilon},
            ORT_DOMAIN,
            outputs=4 if reads_sum else 1,
            hidden=frozenset({1, 2}) if reads_sum else frozenset(),
        )
        places = {skip.add.outputs[0]: Made(0, 3), skip.norm.outputs[0]: Made(0, 0)}
        return Proof((step,), tuple(places[value] for value in site.function.outputs))


def _skip(site: Site) -> _Skip:
    nodes = list(site.function)
    if len(nodes) != 2 or nodes[0].op_type != "Add" or nodes[0].domain:
        raise NotLowered("its body is not a sum and a normalisation")
    add, norm = nodes
    inner = site.functions.get(norm.op_identifier())
    kind = inner.metadata_props.get(keys.META_OP, "") if inner is not None else norm.op_type
    known = inner is not None or norm.domain in {"", "ai.onnx"}
    if kind not in _CENTRED or not known or norm.inputs[0] is not add.outputs[0]:
        raise NotLowered("its body is not a sum and a normalisation of it")
    arguments: Mapping[ir.Value | None, Argument] = dict(zip(site.function.inputs, site.arguments, strict=True))
    if any(value not in arguments for value in (*add.inputs, *norm.inputs[1:])):
        raise NotLowered("its body has constants of its own")
    a, b = (arguments[value] for value in add.inputs)
    return _Skip(add, norm, (a, b), tuple(arguments[value] for value in norm.inputs[1:]), _CENTRED[kind])


def _norm_of(site: Site, skip: _Skip, operator: str) -> tuple[float, Operand, Operand]:
    """Return epsilon, scale and bias."""
    result = site.results[-1]
    summed = Argument(None, result.dtype, result.dims)
    inner = site.functions.get(skip.norm.op_identifier())
    if inner is not None:
        nested = Site(inner, (summed, *skip.others), (result,), site.functions, site.facts)
        norm = proved_norm(nested, nested.forms[0], operator, centred=skip.centred)
        if norm.x is not summed or norm.axis != -1:
            raise NotLowered("it does not normalise the sum over the last axis")
        if norm.bias is not None and not skip.centred:
            raise NotLowered(f"{operator} takes no bias")
        return norm.epsilon, scale_of(norm), norm.bias
    settings = _settings(skip.norm)
    if settings.get("axis", -1) not in {-1, 2} or settings.get("stash_type", 1) != 1:
        raise NotLowered(f"{operator} normalises over the last axis, in float")
    length = known_dims(result)[-1:]
    if any(known_dims(other) != length for other in skip.others):
        raise NotLowered("its scale or bias has not the length of the last axis")
    scale, *rest = (value_of(other) for other in skip.others)
    epsilon = settings.get("epsilon", 1e-5)
    assert isinstance(epsilon, float)
    return epsilon, scale, rest[0] if rest else None


def _settings(node: ir.Node) -> dict[str, Setting]:
    return {name: attribute.value for name, attribute in node.attributes.items()}


SKIP_LAYER_NORM = SkipLayerNorm()
