"""Proofs about InstanceNormalization and the nodes around it: groups or channels normalised, scaled and shifted."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from onnxtile.fusion.lowering import FLOATS, Argument, CallSite, Literal, NotLowered, known_dims, require_type, shown
from onnxtile.fusion.proofs.axes import elements_of, vector_along
from onnxtile.model.constants import constant_array
from onnxtile.model.infer import Dims
from onnxtile.runtime import Array


@dataclass(frozen=True)
class Instances:
    """x, of which `groups` groups of channels are normalised over the other axes; `scale` and `bias` have one element a channel."""

    x: Argument
    groups: int
    epsilon: float
    scale: Literal
    bias: Literal


class _InstanceBody:
    """The nodes of a body that are no constants, and what is known of what they read."""

    def __init__(self, site: CallSite) -> None:
        self._facts = site.facts
        self._known: dict[ir.Value, Argument] = dict(zip(site.function.inputs, site.arguments, strict=True))
        self.nodes: list[ir.Node] = []
        for node in site.function:
            if node.op_type == "Constant":
                array = constant_array(node)
                dtype = ir.DataType.from_numpy(array.dtype)
                self._known[node.outputs[0]] = Argument(None, dtype, array.shape, array, constant=True)
            else:
                self.nodes.append(node)

    def argument(self, value: ir.Value | None) -> Argument | None:
        return None if value is None else self._known.get(value)

    def array(self, value: ir.Value | None, what: str) -> Array:
        argument = self.argument(value)
        if argument is None:
            raise NotLowered(f"its {what} is no constant")
        return elements_of(what, argument, self._facts)


def proved_instances(site: CallSite, operator: str) -> Instances:
    """Return the groups that a site normalises: Reshape, InstanceNormalization and Reshape, or the operator alone, then Mul and Add.

    Raises NotLowered.
    """
    body = _InstanceBody(site)
    kinds = [node.op_type for node in body.nodes]
    grouped = kinds[:3] == ["Reshape", "InstanceNormalization", "Reshape"]
    core = body.nodes[1] if grouped else body.nodes[0]
    after = kinds[3:] if grouped else kinds[1:]
    if core.op_type != "InstanceNormalization" or after not in ([], ["Mul"], ["Mul", "Add"], ["Add"]):
        raise NotLowered(f"its body is {', '.join(kinds)}")
    x = body.argument(body.nodes[0].inputs[0])
    if x is None:
        raise NotLowered("what it normalises is computed in it")
    dims = known_dims(x)
    if require_type(operator, x, FLOATS) != site.dtype or not _same(known_dims(site.results[0]), dims):
        raise NotLowered(f"its result has the shape {shown(known_dims(site.results[0]))}, its input {shown(dims)}")
    own = [body.array(value, what) for value, what in zip(core.inputs[1:], ("scale", "bias"), strict=True)]
    groups = _groups(body, own[0].size, dims, grouped=grouped)
    assert isinstance(dims[1], int)
    scale, bias = (np.repeat(array.astype(np.float64), dims[1] // groups) for array in own)
    for node in body.nodes[3 if grouped else 1 :]:
        vector = _factor(body, node, dims, site)
        scale, bias = (scale * vector, bias * vector) if node.op_type == "Mul" else (scale, bias + vector)
    kind = site.dtype.numpy()
    literals = (Literal(array.astype(kind), site.dtype, what) for array, what in ((scale, "scale"), (bias, "bias")))
    return Instances(x, groups, core.attributes.get_float("epsilon", 1e-5), *literals)


def _groups(body: _InstanceBody, groups: int, dims: Dims, *, grouped: bool) -> int:
    """Return `groups`, where a Reshape to (batch, groups, rest), if there is one, makes as many."""
    channels = dims[1] if len(dims) > 2 else None
    if not isinstance(channels, int) or channels % groups:
        raise NotLowered(f"the channels of {shown(dims)} do not fall into {groups} groups")
    if not grouped:
        if channels != groups:
            raise NotLowered(f"it has {groups} scales for the channels of {shown(dims)}")
        return groups
    target = body.array(body.nodes[0].inputs[1], "first shape")
    keeps_batch = (
        target.size >= 3
        and (target[0] == 0 or target[0] == dims[0])
        and body.nodes[0].attributes.get_int("allowzero", 0) == 0
    )
    if not keeps_batch or target[1] != groups or _too_many(target, dims):
        raise NotLowered(f"the shape {target.tolist()} does not make groups of the channels of {shown(dims)}")
    return groups


def _too_many(target: Array, dims: Dims) -> bool:
    """Tell whether the axes after the groups may be anything but what is left."""
    return bool((target[2:] == 0).any()) and len(dims) != len(target)


def _factor(body: _InstanceBody, node: ir.Node, dims: Dims, site: CallSite) -> Array:
    constants = [argument for value in node.inputs if (argument := body.argument(value)) is not None]
    if len(constants) != 1:
        raise NotLowered("what it is scaled with or shifted by is no constant")
    literal = vector_along("scale" if node.op_type == "Mul" else "bias", constants[0], 1, len(dims), site.facts)
    return literal.array.astype(np.float64)


def _same(a: Dims, b: Dims) -> bool:
    return len(a) == len(b) and all(
        x == y or not (isinstance(x, int) and isinstance(y, int)) for x, y in zip(a, b, strict=True)
    )
