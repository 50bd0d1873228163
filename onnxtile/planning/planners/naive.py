"""Every buffer in bytes of its own: the baseline of all other planners."""

from __future__ import annotations

from onnxtile.planning.offsets.problem import Problem, align
from onnxtile.planning.planner import Planner, heuristic


def _place(problem: Problem) -> list[int]:
    offsets, top = [], 0
    taken = sorted((problem.buffers[i].pin or 0, problem.footprints[i]) for i in problem.pinned)
    for buffer in problem.buffers:
        if buffer.pin is not None:
            offsets.append(buffer.pin)
            continue
        unit, size = problem.alignment_of(buffer), problem.footprint(buffer)
        offset = align(top, unit)
        for start, held in taken:
            if start < offset + size and offset < start + held:
                offset = align(start + held, unit)
        offsets.append(offset)
        top = offset + size
    return offsets


NAIVE = Planner("naive", "no two buffers share a byte", heuristic(_place))
