"""Workspaces: the bytes that a node's kernel needs while it runs, beside its operands and results."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import field

import onnx
import onnx_ir as ir

from onnxtile.declare.plan_document import SHARED, UNIQUE
from onnxtile.kernels.aliases import LayoutFacts
from onnxtile.kernels.kernel_graph import GraphKernel, KernelGraph, Schedule
from onnxtile.model import keys
from onnxtile.model.topology import node_id
from onnxtile.planning.offsets.problem import Buffer
from onnxtile.shapes.opened_calls import is_kernel
from onnxtile.shapes.size_rule import SizeRule
from onnxtile.system.dataclass import dataclass
from onnxtile.system.errors import UsageError, nearest

_SHARING = ("shared", "unique")
_PART = re.compile(rf"\s*(?P<rule>.*?)(?:\s+(?P<sharing>{'|'.join(_SHARING)}))?\s*", re.DOTALL)


@dataclass(frozen=True)
class KernelRule:
    """The bytes that a kernel needs beside its operands and results: `private` ones in its step, `shared` ones, and `unique` ones.

    Shared bytes are those of all kernels with such a rule, one after the other. Unique bytes are the kernel's for the whole run.
    """

    private: SizeRule | None = None
    shared: SizeRule | None = None
    unique: SizeRule | None = None

    @classmethod
    def from_text(cls, text: str) -> KernelRule:
        """Return the rule "4096", "4096 shared", or "4096 shared; 128 unique". Raises UsageError for another text."""
        rules: dict[str, SizeRule] = {}
        for part in text.split(";"):
            match = _PART.fullmatch(part)
            assert match is not None
            sharing = match["sharing"] or "private"
            if sharing in rules:
                raise UsageError(
                    f"the workspace {text!r} has two rules for {sharing} bytes", hint="add them in one rule"
                )
            rules[sharing] = SizeRule(match["rule"])
        return cls(**rules)


@dataclass(frozen=True)
class WorkspaceRules:
    """The bytes of workspaces by node, or by operator ("Conv", "onnxtile::Linear"); the rule of a node comes first.

    A meta-op without a rule needs the bytes its pattern declares. `shared`: all kernels use one workspace, as large as the largest;
    otherwise each has its own in its step. `insides`: a meta-op without any rule needs the bytes of its own nodes.
    """

    rules: Mapping[str, KernelRule] = field(default_factory=dict)
    shared: bool = False
    insides: bool = False

    @classmethod
    def from_texts(cls, texts: Mapping[str, str], shared: bool) -> WorkspaceRules:
        """Return the rules in `texts`, by operator or node. Raises UsageError for an invalid one."""
        return cls({name: KernelRule.from_text(text) for name, text in texts.items()}, shared)

    def require_known(self, model: ir.Model) -> None:
        """Raise UsageError for a rule of a node that `model` does not have, or an operator that neither it nor ONNX has."""
        if not self.rules:
            return
        known = {schema.name for schema in onnx.defs.get_all_schemas()}
        known |= {name for node in model.graph.all_nodes() for name in _names(node)}
        for name in self.rules:
            if name not in known:
                near = nearest(name, known, "name an operator of ONNX, or an operator or a node of the model")
                raise UsageError(f"unknown operator {name!r} of a workspace", hint=near)

    def needs(self, graph: KernelGraph, facts: LayoutFacts, inside: Callable[[ir.Node], int]) -> Needs:
        """Return the workspace bytes of the kernels of `graph`, without bodies; `inside` returns the bytes inside a meta-op.

        Raises ModelError where a rule needs a shape that is not known.
        """
        kernel_rules = ((number, kernel.node, self._rule(kernel, facts)) for number, kernel in enumerate(graph.kernels))
        rules = [(number, node, rule) for number, node, rule in kernel_rules if rule is not None]

        def sizes(sharing: str) -> dict[int, int]:
            with_rule = [
                (number, node, size_rule)
                for number, node, rule in rules
                if (size_rule := getattr(rule, sharing)) is not None
            ]
            known = ((number, size_rule.bytes(node, facts.shapes, inside)) for number, node, size_rule in with_rule)
            return {number: size for number, size in known if size}

        private, together = sizes("private"), sizes("shared")
        if self.shared:
            together = {n: private.get(n, 0) + together.get(n, 0) for n in (*private, *together)}
        return Needs(kernels={} if self.shared else private, together=together, unique=sizes("unique"))

    def _rule(self, kernel: GraphKernel, facts: LayoutFacts) -> KernelRule | None:
        if kernel.is_constant:
            return None
        node = kernel.node
        named = next((self.rules[name] for name in _names(node) if name in self.rules), None) if self.rules else None
        if named is not None or facts.is_standard(node):
            return named
        function = facts.model.functions.get(node.op_identifier())
        declared = None if function is None else function.metadata_props.get(keys.WORKSPACE)
        if declared is None and self.insides and function is not None and is_kernel(function):
            return KernelRule(SizeRule("inside"))
        return None if declared is None else KernelRule.from_text(declared)


NO_RULES = WorkspaceRules()
"""Only the rules that patterns declare."""


def _names(node: ir.Node) -> tuple[str, ...]:
    """Return the names that a rule may have for `node`; the number of a meta-op with several bodies is left out."""
    operator = keys.meta_op(node.op_type) if node.domain == keys.DOMAIN else node.op_type
    names = (f"{node.domain}::{operator}", operator) if node.domain else (operator,)
    return (node_id(node), *names)


@dataclass(frozen=True)
class WorkspaceBuffer:
    """The buffer of a workspace, and the kernels that are its `users`; no two of them run at the same time.

    `is_own` says that it is live in the step of its only user, and may hold the bodies of that.
    """

    buffer: Buffer
    users: tuple[int, ...]
    is_own: bool = True


@dataclass(frozen=True)
class Needs:
    """The bytes of workspaces, by kernel: of those with `bodies`, which never share one, and of other `kernels`.

    All with bytes in `together` use one workspace. Bytes in `unique` are kept for the whole run.
    `alignments` has the alignment of a workspace whose bodies need a larger one than the plan's.
    """

    bodies: Mapping[int, int] = field(default_factory=dict)
    kernels: Mapping[int, int] = field(default_factory=dict)
    alignments: Mapping[int, int] = field(default_factory=dict)
    together: Mapping[int, int] = field(default_factory=dict)
    unique: Mapping[int, int] = field(default_factory=dict)

    @property
    def sizes(self) -> tuple[int, ...]:
        """The bytes of all workspaces."""
        return tuple(
            size for sizes in (self.bodies, self.kernels, self.together, self.unique) for size in sizes.values()
        )

    def workspaces(self, graph: KernelGraph, schedule: Schedule) -> tuple[WorkspaceBuffer, ...]:
        """Return the workspaces of the kernels of `graph` in `schedule`."""
        sizes = dict(self.bodies)
        for kernel, size in self.kernels.items():
            sizes[kernel] = sizes.get(kernel, 0) + size
        names, steps = graph.kernels, schedule.steps
        buffers = [
            WorkspaceBuffer(
                Buffer(f"{names[kernel].name} (workspace)", sizes[kernel], step, step + 1, self.alignments.get(kernel)),
                (kernel,),
            )
            for kernel, step in steps.items()
            if sizes.get(kernel)
        ]
        users = tuple(kernel for kernel in schedule.order if kernel in self.together)
        if users:
            size, first, end = max(self.together.values()), steps[users[0]], steps[users[-1]] + 1
            buffers.append(WorkspaceBuffer(Buffer(SHARED, size, first, end), users, is_own=False))
        for kernel, size in self.unique.items():
            buffer = Buffer(f"{names[kernel].name} {UNIQUE}", size, 0, max(schedule.end, 1))
            buffers.append(WorkspaceBuffer(buffer, (kernel,), is_own=False))
        return tuple(buffers)


NO_NEEDS = Needs()
"""No workspaces."""
