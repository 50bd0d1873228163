"""Text that a model or a user gave, as a terminal may show it: nothing in it moves the cursor, and no line is without end."""

from __future__ import annotations

MOST = 500
"""Characters of an error's line."""
_END = 3
"""One part in so many that is kept of a long text is its end."""
_LEAST = 40
"""Characters of a reason or a hint that say something yet."""


def escaped(text: str) -> str:
    r"""Return `text` with each character that is not printable as Python escapes it: control characters, marks of direction, halves.

    >>> escaped("a\x1b]0;title\x07")
    'a\\x1b]0;title\\x07'
    """
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def capped(text: str, most: int = MOST) -> str:
    """Return `text` in at most `most` characters: its start and its end, and between them a mark that something is left out."""
    if len(text) <= most:
        return text
    end = most // _END
    return f"{text[: most - end - 3]}...{text[len(text) - end :]}"


def error_line(reason: str, hint: str | None, most: int = MOST) -> str:
    """Return the first line of `reason`, with the `hint` in brackets, printable and in at most `most` characters."""
    first = escaped(reason.partition("\n")[0])
    if not hint:
        return capped(first, most)
    advice = escaped(hint)
    limit = most - len(" ()")
    first = capped(first, max(limit - len(advice), limit * 2 // 3))
    left = limit - len(first)
    return f"{first} ({capped(advice, left)})" if left >= min(len(advice), _LEAST) else first
