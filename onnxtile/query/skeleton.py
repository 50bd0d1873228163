"""What every match of a program must have: its nodes outside alternatives and optional parts, and how they hang together.

A search need only begin where the rarest of them can be reached from.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from onnxtile.query.program import Fork, Goto, Instruction, Jump, Mark, Return, Step
from onnxtile.query.syntax import Edge


@dataclass(frozen=True)
class Bone:
    """A node that every match has: its type, and the edge that leads to it from the bone at position `parent`.

    The first bone is the root. Any other without a parent is reached from something that a match need not have.
    """

    type: str
    parent: int | None
    edge: Edge | None


def skeleton(instructions: Sequence[Instruction]) -> tuple[Bone, ...]:
    """Return the bones of a program, in its order; none where matches can begin in several ways."""
    if not isinstance(instructions[0], Step):
        return ()
    bones: list[Bone] = []
    anchors: dict[str, int] = {}
    at: int | None = None
    marks: list[int | None] = []
    place = 0
    while place < len(instructions):
        instruction = instructions[place]
        place += 1
        match instruction:
            case Step():
                at = _bone(instruction, at, bones, anchors)
            case Goto():
                at = anchors.get(instruction.node.key or "")
            case Fork():
                end = _end(instruction, instructions)
                for skipped in instructions[place:end]:
                    if isinstance(skipped, Step) and skipped.node.key is not None:
                        anchors.pop(skipped.node.key, None)
                at, place = None, end
            case Mark():
                marks.append(at)
            case Return():
                at = marks[-1] if instruction.keep else marks.pop()
            case _:
                pass
    return tuple(bones)


def _bone(step: Step, at: int | None, bones: list[Bone], anchors: dict[str, int]) -> int:
    key = step.node.key
    if key is not None and key in anchors:
        return anchors[key]
    bones.append(Bone(step.node.type, at, step.edge))
    if key is not None:
        anchors[key] = len(bones) - 1
    return len(bones) - 1


def _end(fork: Fork, instructions: Sequence[Instruction]) -> int:
    """Return where the ways that part at `fork` meet again: after the optional part, or after the last alternative."""
    if fork.soft:
        return fork.second
    last = instructions[fork.second - 1]
    assert isinstance(last, Jump)
    return last.to
