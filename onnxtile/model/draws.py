"""Random operators: the nodes that may give other results each time they run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

import onnx_ir as ir

from onnxtile.model.walk import nodes_in, nodes_inside, roots
from onnxtile.system.runtime import Array

_CONTRIB = "com.microsoft"
RANDOM: Mapping[tuple[str, str], int | None] = {
    ("", "Bernoulli"): None,
    ("", "Dropout"): 2,
    ("", "Multinomial"): None,
    ("", "RandomNormal"): None,
    ("", "RandomNormalLike"): None,
    ("", "RandomUniform"): None,
    ("", "RandomUniformLike"): None,
    (_CONTRIB, "BiasDropout"): 4,
    (_CONTRIB, "BitmaskBiasDropout"): 4,
    (_CONTRIB, "BitmaskDropout"): 2,
    (_CONTRIB, "Sampling"): None,
}
"""The random operators by domain and name; the place of the input that says whether it trains, for one that draws only then.

Those of onnx are the ones whose schemas call them not deterministic, but for operators with bodies and for AffineGrid, which has no random
numbers; those of onnxruntime have a seed (MurmurHash3 has one as well, and is a function of its operands).
"""
SEED = "seed"
"""The attribute with the seed of a random operator."""
_IS_TEST = 7
"""The first opset in which a Dropout has no attribute `is_test`. From it on, training is said by an input, which opset 12 adds."""


class ConstantElements(Protocol):
    """The constants of a model, as `onnxtile.model.constants.Constants` has them."""

    def __contains__(self, value: ir.Value | None) -> bool: ...
    def array(self, value: ir.Value) -> Array:
        """Return the elements of a constant."""


def may_draw(node: ir.Node) -> bool:
    """Return whether the operator of `node` draws random numbers, at least while it trains."""
    return _key(node) in RANDOM


def draws(node: ir.Node, opset: int, constants: ConstantElements) -> bool:
    """Return whether `node` itself draws random numbers, or may; a Dropout whose training mode is a constant False does not.

    `opset` is the version of the standard operators where the node stands.
    """
    key = _key(node)
    if key not in RANDOM:
        return False
    place = RANDOM[key]
    if place is None:
        return True
    if key[0] == "" and opset < _IS_TEST:
        return node.attributes.get_int("is_test", 0) != 1
    training = node.inputs[place] if place < len(node.inputs) else None
    if training is None:
        return False
    return training not in constants or bool(constants.array(training).any())


def has_seed(node: ir.Node) -> bool:
    """Return whether a random operator has a seed, or takes it from elsewhere. Sampling has an operand for it, or starts at 0."""
    return SEED in node.attributes or node.op_type == "Sampling"


def _key(node: ir.Node) -> tuple[str, str]:
    return ("" if node.domain == "ai.onnx" else node.domain, node.op_type)


class RandomNodes:
    """The nodes of a model that draw random numbers: themselves, in a body, or in a local function that they call."""

    def __init__(self, model: ir.Model, constants: ConstantElements) -> None:
        self.themselves = {
            node
            for root in roots(model)
            for node in nodes_in(root)
            if may_draw(node)
            and node.op_identifier() not in model.functions
            and draws(node, _opset(root.opset_imports), constants)
        }
        """The nodes of all graphs and functions that draw, without those that only hold or call such a node."""
        self.holding = holders(model, self.themselves.__contains__) if self.themselves else _none

    def __contains__(self, node: object) -> bool:
        return isinstance(node, ir.Node) and self.holding(node)


def _opset(imports: Mapping[str, int]) -> int:
    return max(imports.get("", 0), imports.get("ai.onnx", 0))


def holders(model: ir.Model, wanted: Callable[[ir.Node], bool]) -> Callable[[ir.Node], bool]:
    """Return a test whether a node is `wanted`, has such a node in a body, or calls a local function with one."""
    callers: dict[ir.OperatorIdentifier, list[ir.OperatorIdentifier]] = {}
    pending: list[ir.OperatorIdentifier] = []
    for identifier, function in model.functions.items():
        for node in nodes_in(function):
            if wanted(node):
                pending.append(identifier)
            callers.setdefault(node.op_identifier(), []).append(identifier)
    inside: set[ir.OperatorIdentifier] = set()
    while pending:
        identifier = pending.pop()
        if identifier not in inside:
            inside.add(identifier)
            pending += callers.get(identifier, ())
    return lambda node: any(wanted(one) or one.op_identifier() in inside for one in (node, *nodes_inside(node)))


def _none(_: ir.Node) -> bool:
    return False
