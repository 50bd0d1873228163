"""Workspaces: the bytes that a node's kernel needs while it runs, beside its operands and results."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import onnx
import onnx_ir as ir

from onnxtile import keys
from onnxtile.errors import UsageError
from onnxtile.model.size_rule import SizeRule
from onnxtile.model.unfold import is_kernel
from onnxtile.planning.layout.aliases.find import LayoutFacts
from onnxtile.planning.layout.ordering.schedule import Schedule
from onnxtile.planning.offsets.problem import Buffer

SHARED = "(workspace)"
"""The name of the one workspace of all kernels."""


@dataclass(frozen=True)
class WorkspaceRules:
    """The bytes of workspaces by operator ("Conv", "onnxtile::Linear"). A meta-op without a rule needs the bytes its pattern declares.

    `shared`: all kernels use one workspace, as large as the largest; otherwise each has its own in its step. `insides`: a meta-op without
    any rule needs the bytes of its own nodes.
    """

    rules: Mapping[str, SizeRule] = field(default_factory=dict)
    shared: bool = False
    insides: bool = False

    @classmethod
    def of(cls, texts: Mapping[str, str], shared: bool) -> WorkspaceRules:
        """Return the rules in `texts`, by operator. Raises UsageError for an invalid one."""
        return cls({name: SizeRule(text) for name, text in texts.items()}, shared)

    def require_known(self, model: ir.Model) -> None:
        """Raise UsageError for a rule of an operator that neither `model` nor ONNX has."""
        known = {schema.name for schema in onnx.defs.get_all_schemas()}
        known |= {name for node in model.graph.all_nodes() for name in _names(node)}
        for name in self.rules:
            if name not in known:
                near = difflib.get_close_matches(name, known, n=1)
                raise UsageError(
                    f"unknown operator {name!r} of a workspace",
                    hint=f"did you mean {near[0]!r}?" if near else None,
                )

    def of_nodes(self, graph: ir.Graph, facts: LayoutFacts, inside: Callable[[ir.Node], int]) -> dict[ir.Node, int]:
        """Return the workspace bytes of each node of `graph` that has any; `inside` returns the bytes inside a meta-op.

        Raises ModelError where a rule needs a shape that is not known.
        """
        rules = {node: rule for node in graph if (rule := self._rule(node, facts)) is not None}
        found = {node: rule.bytes(node, facts.shapes, inside) for node, rule in rules.items()}
        return {node: size for node, size in found.items() if size}

    def _rule(self, node: ir.Node, facts: LayoutFacts) -> SizeRule | None:
        if all(value in facts.constants for value in node.outputs):
            return None
        named = next((self.rules[name] for name in _names(node) if name in self.rules), None)
        if named is not None or facts.is_standard(node):
            return named
        function = facts.model.functions.get(node.op_identifier())
        declared = None if function is None else function.metadata_props.get(keys.WORKSPACE)
        if declared is None and self.insides and function is not None and is_kernel(function):
            return SizeRule("inside")
        return None if declared is None else SizeRule(declared)


NO_RULES = WorkspaceRules()
"""Only the rules that patterns declare."""


def _names(node: ir.Node) -> tuple[str, ...]:
    """Return the names that a rule may have for `node`; the number of a meta-op with several bodies is left out."""
    operator = keys.meta_op(node.op_type) if node.domain == keys.DOMAIN else node.op_type
    return (f"{node.domain}::{operator}", operator) if node.domain else (operator,)


@dataclass(frozen=True)
class WorkspaceBuffer:
    """The buffer of a workspace, and the nodes that use it; no two of them run at the same time."""

    buffer: Buffer
    nodes: tuple[ir.Node, ...]


@dataclass(frozen=True)
class Needs:
    """The bytes of workspaces, by node: of nodes with `bodies`, which never share one, and of other `kernels`.

    `alignments` has the alignment of a workspace whose bodies need a larger one than the plan's.
    """

    bodies: Mapping[ir.Node, int] = field(default_factory=dict)
    kernels: Mapping[ir.Node, int] = field(default_factory=dict)
    shared: bool = False
    alignments: Mapping[ir.Node, int] = field(default_factory=dict)

    def workspaces(self, schedule: Schedule) -> tuple[WorkspaceBuffer, ...]:
        """Return the workspaces in `schedule`."""
        own = dict(self.bodies)
        for node, size in () if self.shared else self.kernels.items():
            own[node] = own.get(node, 0) + size
        names = dict(zip(schedule.nodes, schedule.ids, strict=True))
        steps = schedule.steps
        found = [
            WorkspaceBuffer(
                Buffer(f"{names[node]} (workspace)", own[node], step, step + 1, self.alignments.get(node)), (node,)
            )
            for node, step in steps.items()
            if own.get(node)
        ]
        users = tuple(node for node in schedule.nodes if self.shared and self.kernels.get(node))
        if users:
            size, first, end = max(self.kernels[n] for n in users), steps[users[0]], steps[users[-1]] + 1
            found.append(WorkspaceBuffer(Buffer(SHARED, size, first, end), users))
        return tuple(found)


NO_NEEDS = Needs()
"""No workspaces."""
