"""The operators of a model: how often each is used, and with which attributes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import onnx
import onnx_ir as ir

from onnxtile.inspection.work import operator_name

_DISTINCT = 16
"""Different values of an attribute that are listed; beyond, its range has to do."""
_NUMBERS = {ir.AttributeType.INT, ir.AttributeType.FLOAT, ir.AttributeType.INTS, ir.AttributeType.FLOATS}
_TEXTS = {ir.AttributeType.STRING, ir.AttributeType.STRINGS}


@dataclass(frozen=True)
class AttributeRange:
    """The values that an attribute has over all nodes of an operator, the default of its schema included.

    `values` are the different ones in order (None where there are too many, or they are tensors or graphs), `low` and `high` the
    smallest and the largest number in any of them.
    """

    name: str
    nodes: int
    values: tuple[Any, ...] | None
    low: float | None
    high: float | None

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON of one attribute."""
        values = None if self.values is None else [list(v) if isinstance(v, tuple) else v for v in self.values]
        return {"name": self.name, "nodes": self.nodes, "values": values, "min": self.low, "max": self.high}


@dataclass(frozen=True)
class OperatorUse:
    """How often an operator stands in the graphs of a model, and the ranges of its attributes."""

    op: str
    count: int
    attributes: tuple[AttributeRange, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON of one operator."""
        return {"op": self.op, "count": self.count, "attributes": [one.to_dict() for one in self.attributes]}


def operators(model: ir.Model) -> tuple[OperatorUse, ...]:
    """Return the operators of all graphs of `model`, bodies included, the most frequent first.

    A call of a local function counts as one operator; what is in the function's body does not.
    """
    nodes: dict[str, list[ir.Node]] = {}
    for node in model.graph.all_nodes():
        nodes.setdefault(operator_name(node), []).append(node)
    opsets = model.graph.opset_imports
    uses = [OperatorUse(op, len(found), tuple(_ranges(found, opsets))) for op, found in nodes.items()]
    return tuple(sorted(uses, key=lambda use: (-use.count, use.op)))


def _ranges(nodes: list[ir.Node], opsets: Mapping[str, int]) -> Iterable[AttributeRange]:
    defaults = _defaults(nodes[0].op_type, nodes[0].domain, opsets.get(nodes[0].domain, 1))
    names = dict.fromkeys(name for node in nodes for name in node.attributes)
    for name in sorted({*names, *defaults}):
        given = [node.attributes[name] for node in nodes if name in node.attributes]
        default = [defaults[name]] if name in defaults and len(given) < len(nodes) else []
        yield _range(name, len(given), [*given, *default])


def _range(name: str, count: int, attributes: list[ir.Attr]) -> AttributeRange:
    plain = [attribute for attribute in attributes if not attribute.is_ref()]
    kinds = {attribute.type for attribute in plain}
    if not kinds or not kinds <= _NUMBERS | _TEXTS:
        return AttributeRange(name, count, None, None, None)
    distinct = sorted({_plain(attribute.value) for attribute in plain}, key=_key)
    numbers = [n for value in distinct for n in (value if isinstance(value, tuple) else (value,))]
    numeric = kinds <= _NUMBERS and bool(numbers)
    return AttributeRange(
        name,
        count,
        tuple(distinct) if len(distinct) <= _DISTINCT else None,
        min(numbers) if numeric else None,
        max(numbers) if numeric else None,
    )


def _key(value: Any) -> Any:
    return (len(value), value) if isinstance(value, tuple) else value


def _plain(value: Any) -> Any:
    """Return a number or a text, or a tuple of them; floats as the float32 that the file holds, in its shortest form."""
    if isinstance(value, list | tuple):
        return tuple(_plain(item) for item in value)
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    return float(f"{value:.7g}") if isinstance(value, float) else value


@cache
def _defaults(op_type: str, domain: str, version: int) -> dict[str, ir.Attr]:
    """Return the attributes that have a default value in the operator's schema; none where no schema knows it."""
    try:
        schema = onnx.defs.get_schema(op_type, version, domain)
    except onnx.defs.SchemaError:
        return {}
    given = {name: one.default_value for name, one in schema.attributes.items() if one.default_value.name}
    return {name: ir.serde.deserialize_attribute(proto) for name, proto in given.items()}
