"""The time of a network by the speeds of a target, on plain data and on models."""

from __future__ import annotations

import pytest

import onnxtile
from onnxtile.fitting.network import FitKernel, FitTensor, Network
from onnxtile.fitting.strips import TargetSpeeds
from onnxtile.operators.reads import AxisLink
from onnxtile.system.errors import UsageError
from onnxtile.tiling.limits import descriptions, figures_of, find, has_limits, ready_made
from tests.fitting.networks import deep

SPEEDS = TargetSpeeds("chip", {"int8": 1_000, "float32": 100}, copied=64, calls=10)


def network(item: int) -> Network:
    """Return a product of 500 multiply-accumulates and a kernel without, each on 64 elements of so many bytes."""
    tensors = [FitTensor(name, (8, 8), item, 0) for name in "xab"]
    rows = (AxisLink(0),)
    return Network(tensors, [FitKernel("product", (0,), (1,), rows, macs=500), FitKernel("relu", (1,), (2,), rows)])


@pytest.mark.parametrize(("item", "products"), [(1, 0.5), (4, 5.0), (8, 5.0)])
def test_products_bytes_and_calls_take_time(item: int, products: float) -> None:
    """A type without a number has the lowest of the others."""
    assert SPEEDS.seconds(network(item)) == pytest.approx(products + 2 * 64 * item / 64 + 2 / 10)


def test_prices_are_shares_of_the_time() -> None:
    prices, whole = SPEEDS.prices(network(1)), SPEEDS.seconds(network(1))
    assert prices.macs * whole == pytest.approx(0.5)
    assert prices.node * whole == pytest.approx(0.1)
    assert prices.copied * whole == pytest.approx(1 / 64)


@pytest.mark.parametrize("name", [name for name in ready_made() if not has_limits(name)])
def test_every_ready_made_target_has_all_speeds_and_no_limits(name: str) -> None:
    figures = figures_of(name)
    # Loops in C by gcc -O2 do not sum products of 8 bits more quickly.
    assert figures.macs_by_type["int8"] == max(figures.macs_by_type.values()) or name == "x86-64-c"
    assert figures.macs_per_second == min(figures.macs_by_type.values())
    assert figures.copied_per_second and figures.calls_per_second
    with pytest.raises(UsageError, match=f"^the target '{name}' has no limits on a tile") as error:
        find(name)
    assert error.value.hint is not None
    assert all(map(has_limits, error.value.hint.removeprefix("choose ").split(", ")))
    assert descriptions()[name].endswith("Not for tile: it has no limits.")


def test_the_result_has_the_time_before_and_after() -> None:
    made = deep()
    slow = {"macs_per_second": "1M", "copied_per_second": "1MB/s", "calls_per_second": "1K"}
    fitted = onnxtile.fit(made, capacity="20KiB", budget="0%", verify=False, target=slow)
    assert fitted.before.seconds == pytest.approx(fitted.before.macs / 1e6 + fitted.before.nodes / 1e3)
    further = (fitted.after.nodes - fitted.before.nodes) / 1e3 + fitted.after.copied / 1e6
    assert further > 0
    assert fitted.after.seconds - fitted.before.seconds == pytest.approx(further)
    usual = onnxtile.fit(made, capacity="20KiB", budget="0%", verify=False)
    assert (usual.speeds, fitted.speeds) == ("cortex-m7", "target")
    assert usual.before.seconds < fitted.before.seconds
