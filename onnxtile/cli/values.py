"""What the text of an option means: sizes in bytes, bound dimensions, whole shapes."""

from __future__ import annotations

from collections.abc import Iterator

from onnxtile.errors import UsageError
from onnxtile.sizes import bytes_of, whole


def pairs(options: list[str] | None, name: str, example: str) -> Iterator[tuple[str, str]]:
    """Split each of `options`, given as --`name` KEY=VALUE, into both. Raises UsageError that shows the `example`."""
    for option in options or ():
        key, equals, value = option.rpartition("=")
        if not equals or not key:
            raise UsageError(f"--{name} {option} is not of the form {example}")
        yield key, value


def dims(options: list[str] | None, option: str = "dim") -> dict[str, int]:
    """Return the sizes that `--dim NAME=N` bind, or those of another `option`. Raises UsageError, for two sizes of one name as well."""
    found: dict[str, int] = {}
    for name, size in pairs(options, option, "NAME=N"):
        number = whole(size)
        if number is None:
            raise UsageError(f"--{option} {name}={size}: the size of a dimension is a whole number")
        if found.setdefault(name, number) != number:
            raise UsageError(f"--{option} gives {name!r} two sizes: {found[name]} and {number}")
    return found


def shapes(options: list[str] | None) -> dict[str, tuple[int, ...]]:
    """Return the shapes that `--shape INPUT=1x3x224x224` give. Raises UsageError."""
    from onnxtile.model.dims import parse_shape

    return {name: parse_shape(shape) for name, shape in pairs(options, "shape", "INPUT=1x3x224x224")}


def capacities(options: list[str] | None) -> int | dict[str, int] | None:
    """Return the bytes of the one arena that `--capacity SIZE` gives, or of each that `--capacity NAME=SIZE` do. Raises UsageError."""
    if not options:
        return None
    if len(options) == 1 and "=" not in options[0]:
        return in_bytes(options[0], "capacity")
    found: dict[str, int] = {}
    for name, size in pairs(options, "capacity", "NAME=SIZE, as several arenas need"):
        if name in found:
            raise UsageError(f"--capacity {name}={size}: there is an arena {name!r} already")
        found[name] = in_bytes(size, f"capacity {name} =") or 0
    return found


def workspaces(options: list[str] | None) -> dict[str, str]:
    """Return the rules that `--workspace OPERATOR=BYTES` give. Raises UsageError."""
    return dict(pairs(options, "workspace", "OPERATOR=BYTES"))


def in_bytes(text: str | None, option: str) -> int | None:
    """Return the bytes that "256KiB", "1MB" or "4096" mean, given for --`option`. Raises UsageError."""
    if text is None:
        return None
    size = bytes_of(text)
    if size is None:
        raise UsageError(f"--{option} {text} is not a size in bytes", hint="write 262144, 256KiB or 8MiB")
    return size
