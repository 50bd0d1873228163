"""The problem of ordering as plain data: nodes, their predecessors, and the buffers that they touch."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

import onnx_ir as ir

from onnxtile.graph import dependencies
from onnxtile.planning.layout.aliases.alias_sets import AliasSet
from onnxtile.planning.layout.aliases.find import Alias
from onnxtile.planning.layout.workspaces import WorkspaceBuffer
from onnxtile.planning.offsets.problem import align


@dataclass(frozen=True)
class OrderingProblem:
    """Nodes and buffers by number; the numbering of nodes is a valid order.

    Node n comes after the nodes `after[n]` and touches the buffers `touches[n]`; it may be the first to write `makes[n]`. A buffer of
    `sizes[b]` bytes is live from the first node that touches it to the last, or to the end of the run if it is in `kept`. `over[n]` are
    pairs of buffers of one size: n may write the first over the second, if no other node touches the second afterwards.
    """

    after: tuple[tuple[int, ...], ...]
    touches: tuple[tuple[int, ...], ...]
    makes: tuple[tuple[int, ...], ...]
    sizes: tuple[int, ...]
    kept: frozenset[int] = frozenset()
    over: Mapping[int, tuple[tuple[int, int], ...]] | None = None

    @cached_property
    def followers(self) -> tuple[tuple[int, ...], ...]:
        """The nodes directly after each node."""
        found: list[list[int]] = [[] for _ in self.after]
        for node, before in enumerate(self.after):
            for other in before:
                found[other].append(node)
        return tuple(map(tuple, found))

    @cached_property
    def uses(self) -> tuple[int, ...]:
        """The number of nodes that touch each buffer; one more if it is kept."""
        counts = [0] * len(self.sizes)
        for touched in self.touches:
            for buffer in touched:
                counts[buffer] += 1
        return tuple(count + (buffer in self.kept) for buffer, count in enumerate(counts))

    @cached_property
    def floor(self) -> int:
        """The bytes that are live in some step of every order: the largest sum of buffers that one node touches."""
        return self.floor_of(range(len(self.after)))

    def floor_of(self, nodes: Iterable[int]) -> int:
        """Return the largest sum of bytes of the buffers that one of `nodes` touches."""
        return max((self._least(node) for node in nodes), default=0)

    def _least(self, node: int) -> int:
        saved = max((self.sizes[made] for made, _ in self.overwrites(node)), default=0)
        return sum(self.sizes[buffer] for buffer in self.touches[node]) - saved

    def overwrites(self, node: int) -> tuple[tuple[int, int], ...]:
        """Return the pairs of `over` for `node`."""
        return (self.over or {}).get(node, ())

    @classmethod
    def of(
        cls,
        nodes: Iterable[ir.Node],
        alias_sets: Mapping[ir.Value, AliasSet],
        in_place: Iterable[Alias],
        outputs: Collection[ir.Value],
        alignment: int,
        workspaces: Iterable[WorkspaceBuffer] = (),
    ) -> OrderingProblem:
        """Return the problem of `nodes`, in a valid order, with one buffer for each alias set; `outputs` are live to the end.

        `workspaces` are buffers that their nodes touch. Buffers take multiples of `alignment` bytes.
        """
        numbers = {node: number for number, node in enumerate(nodes)}
        buffers: dict[int, int] = {}
        for alias_set in alias_sets.values():
            buffers.setdefault(id(alias_set), len(buffers))
        sizes = [0] * len(buffers)
        kept = set()
        for value, alias_set in alias_sets.items():
            sizes[buffers[id(alias_set)]] = align(alias_set.size, alignment)
            if value in outputs:
                kept.add(buffers[id(alias_set)])
        after, touches, makes = [], [], []
        for node in numbers:
            read = list(dict.fromkeys(dependencies(node)))
            producers = (value.producer() for value in read)
            after.append(tuple(sorted({numbers[p] for p in producers if p is not None and p in numbers})))
            made = dict.fromkeys(buffers[id(alias_sets[value])] for value in node.outputs if value in alias_sets)
            touched = dict.fromkeys(buffers[id(alias_sets[value])] for value in read if value in alias_sets)
            makes.append(tuple(made))
            touches.append(tuple(dict.fromkeys((*made, *touched))))
        for workspace in workspaces:
            for user in workspace.nodes:
                touches[numbers[user]] += (len(sizes),)
            sizes.append(align(workspace.buffer.size, alignment))
        over: dict[int, list[tuple[int, int]]] = {}
        for alias in in_place:
            producer = alias.value.producer()
            if producer is None or alias.value not in alias_sets or alias.source not in alias_sets:
                continue
            pair = (buffers[id(alias_sets[alias.value])], buffers[id(alias_sets[alias.source])])
            if pair[0] != pair[1] and alias_sets[alias.value].size == alias_sets[alias.source].size:
                over.setdefault(numbers[producer], []).append(pair)
        return cls(
            tuple(after),
            tuple(touches),
            tuple(makes),
            tuple(sizes),
            frozenset(kept),
            {node: tuple(pairs) for node, pairs in over.items()},
        )
