"""The first value that differs between two models, and the rewrite that made it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from onnxtile import keys
from onnxtile.graph import node_ids
from onnxtile.model.constants import Constants
from onnxtile.model.expose import exposing
from onnxtile.progress import Progress, counted, silent
from onnxtile.verify.values import OutputError, compare_values

_AT_ONCE = 64
"""Values that are held at once."""


@dataclass(frozen=True)
class Bisection:
    """The first value, in the order of the second model, that both models make and that differs; `agreeing` come before it.

    `node` makes it in the second model, `original` in the first; `rewrite` says what became of the original there.
    """

    error: OutputError
    node: str
    op: str
    original: str
    original_op: str
    rewrite: str
    agreeing: int

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON of a bisection."""
        named = {"node": self.node, "op": self.op, "original": self.original, "original_op": self.original_op}
        return {"value": self.error.to_dict(), **named, "rewrite": self.rewrite, "agreeing": self.agreeing}


def bisect(
    original: ir.Model, other: ir.Model, feeds: Mapping[str, Any], progress: Progress = silent
) -> Bisection | None:
    """Run both models on `feeds` and return the first difference; None where all values that both make agree.

    Values are the same where their names are. Only values of the main graphs are looked at, a few at once. Raises ModelError.
    """
    first, second = _makers(original), _makers(other)
    shared = [name for name in second if name in first]
    if not shared:
        return None
    sessions = [exposing(model, shared) for model in (original, other)]
    agreeing = 0
    for names in counted(_batches(shared), "looking for the first value that differs", progress):
        expected, got = (session.run(feeds, names) for session in sessions)
        for name in names:
            error = compare_values(name, expected[name], got[name])
            if not error.equal:
                return _found(error, (original, first[name]), (other, second[name]), agreeing)
            agreeing += 1
    return None


def _makers(model: ir.Model) -> dict[str, ir.Node]:
    return {value.name: node for node in model.graph for value in node.outputs if value.name}


def _batches(names: Sequence[str]) -> list[Sequence[str]]:
    return [names[start : start + _AT_ONCE] for start in range(0, len(names), _AT_ONCE)]


def _found(
    error: OutputError, first: tuple[ir.Model, ir.Node], second: tuple[ir.Model, ir.Node], agreeing: int
) -> Bisection:
    (original, old), (other, new) = first, second
    return Bisection(
        error,
        node_ids(other.graph)[new],
        new.op_type,
        node_ids(original.graph)[old],
        old.op_type,
        _mark(other, new) or _mark(original, old) or _difference(first, second),
        agreeing,
    )


def _mark(model: ir.Model, node: ir.Node) -> str:
    """Return what onnxtile noted on `node` when it wrote it; empty where it did not."""
    notes = node.metadata_props
    if keys.TILE in notes:
        return f"tile: a part of {_source(notes[keys.TILE])}"
    if keys.LOWERED in notes:
        return f"fuse --lower: the meta-op {notes[keys.LOWERED]} became {node.op_type}"
    function = model.functions.get(node.op_identifier())
    if keys.FUSED in notes and function is not None:
        return f"fuse: the pattern {function.metadata_props.get(keys.META_OP, function.name)}"
    return ""


def _source(mark: str) -> str:
    try:
        content = json.loads(mark)
    except ValueError:
        return mark
    return f"{content['op']} {content['node']!r}" if {"op", "node"} <= content.keys() else mark


def _difference(first: tuple[ir.Model, ir.Node], second: tuple[ir.Model, ir.Node]) -> str:
    """Say how two nodes differ that make the same value from values that agree."""
    (original, old), (other, new) = first, second
    if old.op_type != new.op_type:
        return f"{old.op_type} became {new.op_type}, by no rewrite of onnxtile"
    changed = [name for name in old.attributes if repr(old.attributes[name]) != repr(new.attributes.get(name))]
    if changed or old.attributes.keys() != new.attributes.keys():
        return f"the attribute {', '.join(changed or sorted(new.attributes.keys() - old.attributes.keys()))} differs"
    constants = Constants(original), Constants(other)
    for position, (before, after) in enumerate(zip(old.inputs, new.inputs, strict=False)):
        if before is None or after is None or before not in constants[0] or after not in constants[1]:
            continue
        if not np.array_equal(constants[0].array(before), constants[1].array(after)):
            return f"the constant {after.name!r}, its input {position}, differs"
    return "it stands alike in both models: what it reads differs within the tolerance, or its function does"
