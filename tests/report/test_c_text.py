"""Names of models in C sources: they stay what they are, and no comment around or inside them changes what is compiled."""

import re

import pytest

from onnxtile.report.c_header import comment, literal

NAMES = ("*/ canary /*", "/*", "*/", "/*/", "**//", "*/0", "a\x1bb", 'say "x"', "??/", "\\", "é\u202e", "\udcff")


def text_of(c_literal: str) -> bytes:
    """Return the bytes that a C compiler reads in `c_literal`."""
    inner = c_literal[1:-1].encode()
    return re.sub(rb"\\([0-7]{3})", lambda found: bytes([int(found[1], 8)]), inner)


@pytest.mark.parametrize("name", NAMES)
def test_a_literal_is_the_text_and_may_stand_in_a_comment(name: str) -> None:
    made = literal(name)
    assert text_of(made) == name.encode(errors="surrogatepass")
    assert "*/" not in made and "/*" not in made and made.isascii() and made.isprintable()


@pytest.mark.parametrize("name", NAMES)
def test_a_comment_neither_ends_nor_begins_another(name: str) -> None:
    made = comment(name)
    assert "*/" not in made and "/*" not in made and made.isprintable() and "\\" not in made
