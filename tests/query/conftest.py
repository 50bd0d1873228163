"""Small graphs written as text, and what queries find in them, written as Aidge's users do: `a:{a,b}`, the root and all nodes."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import helper, numpy_helper

from onnxtile.model.constants import Constants
from onnxtile.query.graph import identify
from onnxtile.query.match import Match, Matcher, compiled
from onnxtile.system.runtime import Array

_NODE = re.compile(r"\s*([\w,]*)=([\w.:]+)\(([^)]*)\)\s*(?:\{(.*)\})?\s*$")


def nodes_from(text: str) -> list[onnx.NodeProto]:
    """Return the nodes that `a=Relu(x);s,t=Split(a){axis=1}` says: outputs, operator, inputs, attributes.

    A node is named like its first output. `Constant()` holds 1.0; an input left out is written as nothing: `Clip(x,,H)`.
    """
    nodes = []
    for line in filter(str.strip, text.replace("\n", ";").split(";")):
        parts = _NODE.match(line)
        assert parts is not None, line
        outputs, (domain, _, op) = parts[1].split(","), parts[2].rpartition("::")
        inputs = [name.strip() for name in parts[3].split(",")] if parts[3].strip() else []
        pairs = (pair.split("=", 1) for pair in (parts[4] or "").split(" ") if pair)
        attributes: dict[str, Any] = {key: helper.make_attribute(key, _literal(value)) for key, value in pairs}
        if op == "Constant" and not attributes:
            tensor = numpy_helper.from_array(np.ones(1, np.float32), outputs[0])
            attributes["value"] = helper.make_attribute("value", tensor)
        node = helper.make_node(op, inputs, outputs if outputs != [""] else [], name=outputs[0], domain=domain)
        node.attribute.extend(attributes.values())
        nodes.append(node)
    return nodes


def _literal(text: str) -> Any:
    if text.startswith("["):
        return [_literal(item) for item in text[1:-1].split(",")]
    try:
        return int(text)
    except ValueError:
        pass
    try:
        return float(text)
    except ValueError:
        return text


def model_from(
    text: str,
    *,
    outputs: Sequence[str] = (),
    constants: Mapping[str, Array] | None = None,
    shape: Sequence[int | str] = (2, 2),
    opset: int = 17,
) -> onnx.ModelProto:
    """Return the model of `text`. A name with a capital is an initializer, [1.0] unless `constants` says otherwise.

    What nothing reads is an output of the graph, and so is what `outputs` names.
    """
    nodes = nodes_from(text)
    made = {name for node in nodes for name in node.output}
    read = dict.fromkeys(name for node in nodes for name in node.input if name)
    given = dict(constants or {})
    given |= {name: np.ones(1, np.float32) for name in read if name[0].isupper() and name not in {*given, *made}}
    results = dict.fromkeys([*outputs, *(name for node in nodes for name in node.output if name and name not in read)])
    graph = helper.make_graph(
        nodes,
        "small",
        [helper.make_tensor_value_info(name, 1, shape) for name in read if name not in {*made, *given}],
        [helper.make_tensor_value_info(name, 1, None) for name in results],
        [numpy_helper.from_array(np.asarray(array), name) for name, array in given.items()],
    )
    domains = {node.domain for node in nodes} - {""}
    opsets = [helper.make_opsetid("", opset), *(helper.make_opsetid(domain, 1) for domain in sorted(domains))]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


def shown(match: Match) -> str:
    """Return `root:{nodes}`, the nodes sorted by name."""
    return f"{identify(match.root)}:{{{','.join(sorted(identify(vertex) for vertex in match.vertices))}}}"


@dataclass(frozen=True)
class Small:
    """A small model."""

    model: ir.Model
    constants: Constants

    def matches(self, query: str) -> list[Match]:
        """Return the matches of a query; every operator of the model is known."""
        known = {node.op_type for node in self.model.graph.all_nodes()}
        return Matcher(self.model, self.constants).find(compiled(query, known))

    def find(self, query: str) -> str:
        """Return the matches of a query as text, sorted, and "" where there is none."""
        return " | ".join(sorted(map(shown, self.matches(query))))


class Graphs:
    """Makes small models."""

    def __call__(self, text: str, **options: Any) -> Small:
        """Return the model of `text`; see `model_from` for the options."""
        return self.of(model_from(text, **options))

    def of(self, proto: onnx.ModelProto) -> Small:
        """Return a model that is given."""
        model = ir.from_proto(proto)
        return Small(model, Constants(model))


@pytest.fixture(scope="session")
def graph() -> Graphs:
    """Return the maker of small models."""
    return Graphs()
