"""How many random examples a property draws."""

from __future__ import annotations

from typing import Any

from hypothesis import HealthCheck, settings

# The time a case takes is the machine's affair; what fails here fails for everyone; and no test changes what a fixture made.
settings.register_profile(
    "onnxtile",
    max_examples=50,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.function_scoped_fixture],
)
settings.register_profile("slow", settings.get_profile("onnxtile"), max_examples=200)


def load_profile(is_slow: bool) -> None:
    """Let properties draw as many examples as `--slow` asks for, or few."""
    settings.load_profile("slow" if is_slow else "onnxtile")


def draws(few: int, slow: int | None = None, **others: Any) -> settings:
    """Return the settings of a property that draws `few` examples, and with `--slow` so many: without a number, twice as many."""
    is_slow = settings.get_current_profile_name() == "slow"
    return settings(max_examples=(slow or 2 * few) if is_slow else few, **others)
