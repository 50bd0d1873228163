"""Live bytes in a line of text."""

from __future__ import annotations

from itertools import pairwise

import pytest

from onnxtile.report.layout import live_line, live_sizes
from tests.report.conftest import Plan, bare, row, stacked


def test_bars_are_at_one_scale_and_none_is_for_nothing_only() -> None:
    assert live_line([0, 1, 50, 100], 100) == " ▁▄█"
    assert live_line([0], 0) == " "


@pytest.mark.parametrize("count", [1, 7, 48, 1000])
def test_each_span_has_the_most_of_its_steps(count: int) -> None:
    plan = stacked(60, depth=6)
    end = max(len(plan["schedule"]), 1 + max(b["last"] for b in plan["buffers"]))
    live = [
        sum(-(-b["size"] // 64) * 64 for b in plan["buffers"] if b["first"] <= step <= b["last"]) for step in range(end)
    ]
    edges = [len(live) * i // count for i in range(count + 1)]
    wanted = [max(live[first : max(last, first + 1)]) for first, last in pairwise(edges)]
    assert live_sizes(plan, count) == wanted


def test_arenas_are_summed(odd: Plan) -> None:
    assert max(live_sizes(odd, 10)) > 1 << 32
    assert live_sizes(bare([]), 3) == [0, 0, 0]
    assert live_sizes(bare([row("a", 0, 8, 0, 0)]), 2) == [8, 8]
