"""What a node is: it quantises, gives back floats or draws random numbers; and the modules around it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise, takewhile
from typing import TypeAlias

import onnx_ir as ir

from onnxtile.model import keys
from onnxtile.model.topology import main_graphs, nodes_in, nodes_inside, opset_in, roots
from onnxtile.operators.node_view import KnownConstants
from onnxtile.operators.table import draws, may_draw

QUANTISING, DEQUANTISING = "QuantizeLinear", "DequantizeLinear"

QUANTISING_AT_RUN = "DynamicQuantizeLinear"
INTEGER = frozenset({"ConvInteger", "MatMulInteger"})
"""Operators that sum products of quantised tensors as int32."""

OWN_DOMAINS = frozenset({"", "com.microsoft"})
"""The domains whose operators of these names mean the same."""


def quantises(node: ir.Node | None) -> bool:
    """Return whether `node` is a QuantizeLinear."""
    return node is not None and node.op_type == QUANTISING and node.domain in OWN_DOMAINS


def dequantises(node: ir.Node | None) -> bool:
    """Return whether `node` is a DequantizeLinear."""
    return node is not None and node.op_type == DEQUANTISING and node.domain in OWN_DOMAINS


def quantises_at_run(node: ir.Node | None) -> bool:
    """Return whether `node` quantises with a scale that it computes from its operand."""
    return node is not None and node.op_type == QUANTISING_AT_RUN and node.domain in OWN_DOMAINS


def sums_integers(node: ir.Node) -> bool:
    """Return whether `node` is a product of quantised tensors with an int32 result."""
    return node.op_type in INTEGER and node.domain in OWN_DOMAINS


def is_quantised(model: ir.Model) -> bool:
    """Return whether any graph of `model` has a node that quantises or dequantises, or multiplies quantised tensors."""
    return any(
        quantises(node) or dequantises(node) or sums_integers(node) for graph in main_graphs(model) for node in graph
    )


# Random operators: the nodes that may give other results each time they run.

SEED = "seed"
"""The attribute with the seed of a random operator."""


def has_seed(node: ir.Node) -> bool:
    """Return whether a random operator has a seed, or takes it from elsewhere. Sampling has an operand for it, or starts at 0."""
    return SEED in node.attributes or node.op_type == "Sampling"


class RandomNodes:
    """The nodes of a model that draw random numbers: themselves, in a body, or in a local function that they call."""

    def __init__(self, model: ir.Model, constants: KnownConstants) -> None:
        self.themselves = {
            node
            for root in roots(model)
            for node in nodes_in(root)
            if may_draw(node)
            and node.op_identifier() not in model.functions
            and draws(node, opset_in(root.opset_imports), constants)
        }
        """The nodes of all graphs and functions that draw, without those that only hold or call such a node."""
        self.holding = holders(model, self.themselves.__contains__) if self.themselves else lambda _: False

    def __contains__(self, node: object) -> bool:
        return isinstance(node, ir.Node) and self.holding(node)


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
    return lambda node: any(wanted(inner) or inner.op_identifier() in inside for inner in (node, *nodes_inside(node)))


# The modules around a node, such as `blocks.0.attn`, as exporters write them into metadata or into names.
#
# PyTorch's exporter of `torch.export` graphs writes `pkg.torch.onnx.name_scopes` and `pkg.torch.onnx.class_hierarchy`, and both together as
# `namespace`. Its TorchScript exporter writes the path into the name: `/blocks/blocks.0/attn/MatMul`. Other tools write
# `blocks.0.attn.MatMul`. Nodes that onnxtile makes have `pkg.onnxtile.module`, where their name says another path.
#
# PyTorch's exporter also writes which constants the modules hold, and of which other constants it computed one.


ModulePath: TypeAlias = tuple[str, ...]
"""The modules around a node from the outermost on, each by its name within the one before: ("blocks", "0", "attn")."""

_SCOPES = "pkg.torch.onnx.name_scopes"
_CLASSES = "pkg.torch.onnx.class_hierarchy"
_NAMESPACE = "namespace"
_INPUT_KIND = "pkg.torch.export.graph_signature.InputSpec.kind"
_FOLDED_FROM = "pkg.onnxscript.optimizer.folded_from"
_TEXT = r"'[^'\\]*'"
_LIST = re.compile(rf"\[(?:{_TEXT}(?:, {_TEXT})*)?\]")
"""A list of Python that has only plain texts."""
_TEXTS = re.compile(r"'([^'\\]*)'")


def module_path(name: str | None, notes: Mapping[str, str]) -> ModulePath:
    """Return the modules around the node `name` with the metadata `notes`; an empty path where neither says any."""
    noted = notes.get(keys.MODULE)
    if noted is not None:
        return tuple(filter(None, noted.split("/")))
    scopes = _scopes(notes)
    if scopes is not None:
        return _within([scope for scope, _ in scopes])
    return _within(_parts_of_name(name or ""))


def module_classes(notes: Mapping[str, str]) -> tuple[str, ...]:
    """Return the classes of the model and of each module of the path in the metadata `notes`; none where they are not known."""
    scopes = _scopes(notes) or []
    classes = tuple(kind for scope, kind in scopes)
    return classes if scopes and not scopes[0][0] and all(classes) else ()


def held_as(notes: Mapping[str, str]) -> str:
    """Return how a module holds the constant with the metadata `notes`: "PARAMETER", "BUFFER"; empty where these do not say it."""
    return notes.get(_INPUT_KIND, "")


def is_folded_parameter(notes: Mapping[str, str]) -> bool:
    """Return whether an exporter computed the constant with the metadata `notes` of one inside a module, as `blocks.0.act.weight`."""
    return any("." in name for name in _list_of(notes.get(_FOLDED_FROM)) or ())


def dotted(path: ModulePath) -> str:
    """Return the name of a module as PyTorch's `named_modules` has it: "blocks.0.attn"."""
    return ".".join(path)


def shared_path(paths: Iterable[ModulePath]) -> ModulePath:
    """Return the modules with which all of `paths` begin."""
    parts = takewhile(lambda names: len({*names}) == 1, zip(*paths, strict=False))
    return tuple(names[0] for names in parts)


def module_note(path: ModulePath, name: str) -> dict[str, str]:
    """Return the metadata of a new node `name` inside the modules `path`; none where the name says that path."""
    return {} if module_path(name, {}) == path else {keys.MODULE: "/".join(path)}


def _scopes(notes: Mapping[str, str]) -> list[tuple[str, str]] | None:
    """Return the name and the class of the model and of each module around a node; None where `notes` do not have them."""
    names = _list_of(notes.get(_SCOPES))
    if names:
        classes = _list_of(notes.get(_CLASSES)) or []
        known = classes if len(classes) == len(names) else [""] * len(names)
        return list(zip(names, known, strict=True))[:-1]  # the last is the operator
    parts = [part.partition(": ") for part in notes.get(_NAMESPACE, "").split("/")]
    if all(sign for _, sign, _ in parts):
        return [(name, kind) for name, _, kind in parts][:-1]
    return None


def _list_of(text: str | None) -> list[str] | None:
    return _TEXTS.findall(text) if text is not None and _LIST.fullmatch(text) else None


def _parts_of_name(name: str) -> Sequence[str]:
    """Return the modules in the name of a node, of which the last part is the operator: a number there is none."""
    *modules, last = name.split("/") if "/" in name else name.split(".")
    return [] if last.isdecimal() else [part for part in modules if part]


def _within(scopes: Sequence[str]) -> ModulePath:
    """Return each of `scopes` by its name within the one before, which is written before it: `blocks.0` within `blocks` is `0`."""
    return tuple(name.removeprefix(f"{outer}.") if outer else name for outer, name in pairwise(["", *scopes]) if name)
