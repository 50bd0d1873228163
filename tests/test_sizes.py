"""Sizes in bytes, as people write them."""

import pytest

from onnxtile.sizes import bytes_of


@pytest.mark.parametrize(
    ("text", "size"),
    [("4096", 4096), ("256KiB", 2**18), ("256 kib", 2**18), ("1MB", 10**6), ("8GiB", 2**33), ("0b", 0), (" 7 ", 7)],
)
def test_sizes(text: str, size: int) -> None:
    assert bytes_of(text) == size


@pytest.mark.parametrize("text", ["", "lots", "1.5MB", "-1", "KiB", "12 parsecs", "1e3"])
def test_no_sizes(text: str) -> None:
    assert bytes_of(text) is None
