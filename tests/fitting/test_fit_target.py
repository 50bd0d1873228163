"""fit --target: the limits of the hardware hold for the pieces, and the arena is that of the tiled pieces."""

from __future__ import annotations

from pathlib import Path

import pytest

import onnxtile
from tests.fitting.networks import inverted_residuals, model

LIMITS = "k = 16\nn = 16\nrows = 8\nchannels = 8\nfilters = 16\n"


@pytest.fixture(name="limits")
def fixture_limits(tmp_path: Path) -> str:
    """A limits file that cuts convolutions."""
    (tmp_path / "limits.toml").write_text(LIMITS)
    return str(tmp_path / "limits.toml")


@pytest.mark.parametrize("wrap", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_the_limits_hold_for_the_pieces(limits: str, tmp_path: Path, wrap: bool) -> None:
    fitted = onnxtile.fit(inverted_residuals(), capacity="12KiB", target=limits, wrap=wrap)
    assert fitted.after.arena <= 12 * 1024 and fitted.steps
    assert fitted.tiled is not None and not fitted.tiled.over_limits
    fitted.save(tmp_path / "out.onnx")
    assert not onnxtile.tile(tmp_path / "out.onnx", target=limits).result.tiled
    assert onnxtile.plan(tmp_path / "out.onnx").plan.arena_size == fitted.after.arena
    assert onnxtile.verify(inverted_residuals(), tmp_path / "out.onnx").equal


def test_a_model_that_fits_is_tiled_too(limits: str) -> None:
    fitted = onnxtile.fit(inverted_residuals(), capacity="1MiB", target=limits)
    assert not fitted.steps and fitted.tiled is not None and fitted.tiled.tiled
    assert not onnxtile.tile(fitted.model, target=limits).result.tiled


@pytest.mark.slow
def test_tiles_that_take_more_bytes_make_the_search_look_for_fewer(tmp_path: Path) -> None:
    net = model(
        "g (float[32,64] x) => (float[32,16] y) { h = MatMul(x, w0) r = Relu(h) y = MatMul(r, w1) }",
        w0=(64, 256),
        w1=(256, 16),
    )
    (tmp_path / "k.toml").write_text("k = 32\n")
    fitted = onnxtile.fit(net, capacity="20KiB", target=str(tmp_path / "k.toml"))
    assert onnxtile.plan(fitted.model).plan.arena_size == fitted.after.arena <= 20 * 1024
    assert fitted.tiled is not None and fitted.tiled.tiled
    assert not onnxtile.tile(fitted.model, target=str(tmp_path / "k.toml")).result.tiled


def test_limits_that_do_not_exist_are_refused() -> None:
    with pytest.raises(onnxtile.UsageError, match=r"nowhere\.toml"):
        onnxtile.fit(inverted_residuals(), capacity="12KiB", target="nowhere.toml")
