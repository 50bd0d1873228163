from typing import Any

import pytest

from onnxtile.system.errors import UsageError
from onnxtile.tiling.limits import LARGEST, Limits


def test_max_bounds_every_axis_that_has_no_bound_of_its_own() -> None:
    assert Limits.of(max=64) == Limits(64, 64, 64)
    assert Limits.of(max=64, k=16) == Limits(64, 16, 64)
    assert Limits.of(n=8) == Limits(None, None, 8)
    assert Limits.of(max=LARGEST).m == LARGEST


@pytest.mark.parametrize("bound", [0, -1, -64, LARGEST + 1, 10**30])
@pytest.mark.parametrize("option", ["max", "m", "k", "n"])
def test_a_bound_that_makes_no_sense_is_refused_by_its_option(option: str, bound: Any) -> None:
    shown = "--max " if option == "max" else f"--max-{option} "
    with pytest.raises(UsageError, match=f"^{shown}{bound}\\b"):
        Limits.of(**dict[str, Any]({option: bound}))


@pytest.mark.parametrize("bound", [True, 64.0, "64"])
def test_a_bound_is_a_whole_number(bound: int) -> None:
    with pytest.raises(UsageError, match="not a whole number"):
        Limits.of(max=bound)


def test_no_limit_at_all_is_refused() -> None:
    with pytest.raises(UsageError, match="no limit"):
        Limits.of()
