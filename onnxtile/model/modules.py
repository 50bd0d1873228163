"""The modules around a node, such as `blocks.0.attn`, as exporters write them into metadata or into names.

PyTorch's exporter of `torch.export` graphs writes `pkg.torch.onnx.name_scopes` and `pkg.torch.onnx.class_hierarchy`, and both together as
`namespace`. Its TorchScript exporter writes the path into the name: `/blocks/blocks.0/attn/MatMul`. Other tools write
`blocks.0.attn.MatMul`. Nodes that onnxtile makes have `pkg.onnxtile.module`, where their name says another path.

PyTorch's exporter also writes which constants the modules hold, and of which other constants it computed one.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import pairwise, takewhile
from typing import TypeAlias

from onnxtile.model import keys

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
    return _path_in_name(name or "")


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
    if not notes:
        return None
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


@lru_cache(maxsize=2**14)
def _path_in_name(name: str) -> ModulePath:
    return _within(_parts_of_name(name))


def _within(scopes: Sequence[str]) -> ModulePath:
    """Return each of `scopes` by its name within the one before, which is written before it: `blocks.0` within `blocks` is `0`."""
    return tuple(name.removeprefix(f"{outer}.") if outer else name for outer, name in pairwise(["", *scopes]) if name)
