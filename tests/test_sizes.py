"""Sizes in bytes, as people write them."""

import pytest

from onnxtile.system.text import bytes_of, whole


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("4096", 4096),
        ("256KiB", 2**18),
        ("256 kib", 2**18),
        ("1MB", 10**6),
        ("8GiB", 2**33),
        ("0b", 0),
        (" 7 ", 7),
        ("1.25MiB", 1310720),
        ("1.5MB", 1500000),
        ("0.5KiB", 512),
        ("1.0", 1),
        ("0.001kB", 1),
    ],
)
def test_sizes(text: str, size: int) -> None:
    assert bytes_of(text) == size


@pytest.mark.parametrize(
    "text",
    [
        "",
        "lots",
        "1.5",
        "1.0001KiB",
        ".5KiB",
        "1.KiB",
        "1.5.5MB",
        "1,5MB",
        "-1",
        "KiB",
        "12 parsecs",
        "1e3",
        "9" * 31,
        "9" * 5000 + "KiB",
        "1." + "0" * 30 + "MB",
        "٣KiB",
    ],
)
def test_no_sizes(text: str) -> None:
    assert bytes_of(text) is None


@pytest.mark.parametrize(("text", "number"), [("0", 0), ("007", 7), ("9" * 30, 10**30 - 1)])
def test_whole_numbers(text: str, number: int) -> None:
    assert whole(text) == number


@pytest.mark.parametrize("text", ["", "-1", "+1", "1.0", " 1", "²", "٣", "9" * 31, "9" * 5000])
def test_no_whole_numbers(text: str) -> None:
    assert whole(text) is None
