"""The part that every match of a program must have: its nodes outside alternatives and optional parts, and how they hang together.

A search need only begin where the rarest of them can be reached from.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from onnxtile.query.program import Follow, Fork, Goto, Instruction, Jump, Mark, Return
from onnxtile.query.syntax import Edge


@dataclass(frozen=True)
class RequiredNode:
    """A node that every match has: the types of which it has one, and the edge that leads to it from the node at position `parent`.

    The first node is the root. Any other without a parent is reached from something that a match need not have. What is only
    `looked_at` may be an input of the graph.
    """

    types: tuple[str, ...]
    parent: int | None
    edge: Edge | None
    looked_at: bool = False


def required_nodes(instructions: Sequence[Instruction]) -> tuple[RequiredNode, ...]:
    """Return the required nodes of a program, in its order; none where matches can begin in several ways."""
    if not isinstance(instructions[0], Follow) and not _alternatives(0, instructions):
        return ()
    required: list[RequiredNode] = []
    anchors: dict[str, int] = {}
    at: int | None = None
    marks: list[int | None] = []
    place = 0
    while place < len(instructions):
        instruction = instructions[place]
        place += 1
        match instruction:
            case Follow():
                at = _required(instruction, at, required, anchors)
            case Goto():
                at = anchors.get(instruction.node.key or "")
            case Fork():
                end = _end(instruction, instructions)
                ways = _alternatives(place - 1, instructions)
                for skipped in instructions[place:end]:
                    if isinstance(skipped, Follow) and skipped.node.key is not None:
                        anchors.pop(skipped.node.key, None)
                at = _alternative(ways, at, required, anchors) if ways else None
                place = end
            case Mark():
                marks.append(at)
            case Return():
                at = marks[-1] if instruction.keep else marks.pop()
            case _:
                pass
    return tuple(required)


def _required(step: Follow, at: int | None, required: list[RequiredNode], anchors: dict[str, int]) -> int:
    key = step.node.key
    if key is not None and key in anchors:
        return anchors[key]
    required.append(RequiredNode((step.node.type,), at, step.edge, step.node.looked_at))
    if key is not None:
        anchors[key] = len(required) - 1
    return len(required) - 1


def _alternative(
    ways: Sequence[Follow], at: int | None, required: list[RequiredNode], anchors: dict[str, int]
) -> int | None:
    """Add the node of which there is one of several kinds; None where an anchor may say which vertex it is."""
    if any(step.node.key in anchors for step in ways):
        return None
    types = tuple(dict.fromkeys(step.node.type for step in ways))
    required.append(RequiredNode(types, at, ways[0].edge, any(step.node.looked_at for step in ways)))
    return len(required) - 1


def _alternatives(place: int, instructions: Sequence[Instruction]) -> list[Follow]:
    """Return the alternatives between which the fork at `place` chooses, where each is a single node; else none."""
    ways: list[Follow] = []
    fork = instructions[place]
    if not isinstance(fork, Fork) or fork.soft:
        return []
    end = _end(fork, instructions)
    while isinstance(fork, Fork):
        step = instructions[fork.first]
        if fork.soft or fork.second != fork.first + 2 or not isinstance(step, Follow):
            return []
        ways.append(step)
        place, fork = fork.second, instructions[fork.second]
    if not isinstance(fork, Follow) or place + 1 != end:
        return []
    return [*ways, fork]


def _end(fork: Fork, instructions: Sequence[Instruction]) -> int:
    """Return where the ways that part at `fork` meet again: after the optional part, or after the last alternative."""
    if fork.soft:
        return fork.second
    last = instructions[fork.second - 1]
    assert isinstance(last, Jump)
    return last.to
