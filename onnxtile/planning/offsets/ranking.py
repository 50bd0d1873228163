"""Orders in which planners place buffers, as numbers of buffers."""

from __future__ import annotations

from bisect import bisect_left

from onnxtile.planning.offsets.problem import Problem


def by_size(problem: Problem) -> list[int]:
    """Return the largest first; ties go to the earlier, then the longer live range, then the name."""
    b = problem.buffers
    return sorted(range(len(b)), key=lambda i: (-b[i].size, b[i].lower, -b[i].upper, b[i].name))


def by_birth(problem: Problem) -> list[int]:
    """Return them by first step, of one step the largest first."""
    b = problem.buffers
    return sorted(range(len(b)), key=lambda i: (b[i].lower, -b[i].size, -b[i].upper, b[i].name))


def by_breadth(problem: Problem) -> list[int]:
    """Return the buffers of the step with the most live bytes first, then those of the next fullest, in each step by size."""
    buffers, parts = problem.buffers, problem.parts
    steps = sorted({*parts.lower.tolist(), *(b.lower for b in buffers)})
    breadth = [0] * (len(steps) + 1)
    spans = [(bisect_left(steps, b.lower), bisect_left(steps, b.upper)) for b in buffers]
    for size, lower, upper in zip(
        (parts.end - parts.start).tolist(), parts.lower.tolist(), parts.upper.tolist(), strict=True
    ):
        breadth[bisect_left(steps, lower)] += size
        breadth[bisect_left(steps, upper)] -= size
    for k in range(1, len(breadth)):
        breadth[k] += breadth[k - 1]
    widest = _range_maximum(breadth)
    return sorted(
        range(len(buffers)), key=lambda i: (-widest(*spans[i]), -buffers[i].size, buffers[i].lower, buffers[i].name)
    )


class _range_maximum:  # noqa: N801 - used as a function
    """The maximum of a range of numbers, by tables of powers of two."""

    def __init__(self, numbers: list[int]) -> None:
        self._tables = [numbers]
        width = 1
        while 2 * width <= len(numbers):
            last = self._tables[-1]
            self._tables.append([max(a, b) for a, b in zip(last, last[width:], strict=False)])
            width *= 2

    def __call__(self, first: int, end: int) -> int:
        level = (end - first).bit_length() - 1
        table = self._tables[level]
        return max(table[first], table[end - (1 << level)])
