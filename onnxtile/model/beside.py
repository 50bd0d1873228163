"""Constants that do not fit into the file of their model, in a file of data beside it.

A file of data is never written over, and its name is not given to other data: a new model gets new data under a name of their own, and the
data of the model that it replaced are removed at the end. So the model that is there always has the data that it was written with,
wherever the writing is cut short.
"""

from __future__ import annotations

import filecmp
import hashlib
import mmap
import re
from collections.abc import Callable
from itertools import chain, count
from pathlib import Path

from onnx import serialization

from onnxtile.model.temporary import temporary_file
from onnxtile.model.weights import named_weights
from onnxtile.model.whole import refusals, umask


def written_beside(path: Path, write: Callable[[Path], object], made: list[Path]) -> str:
    """Return the name of a file of data beside `path`, filled by `write`; note the file in `made` if it is new.

    The name is that of `path` with .data, and where the model at `path` has other data, with a digest of these behind. Raises UsageError
    where the system refuses.
    """
    folder = path.parent.resolve()
    with refusals(folder / f"{path.name}.data"), temporary_file(folder) as temporary:
        write(temporary)
        temporary.chmod(0o666 & ~umask())
        name = _name(path, folder, temporary)
        if not (folder / name).exists():
            made.append(folder / name)
            temporary.rename(folder / name)
    return name


def data_of(path: Path) -> frozenset[Path]:
    """Return the files of data that the model file `path` names and that bear its name: those that onnxtile wrote beside it."""
    return frozenset(
        file for file in named_weights(path) if file.parent == path.parent and _own(path, "?").fullmatch(file.name)
    )


def left_over(path: Path) -> frozenset[Path]:
    """Return the files beside `path` that have the name of its data with a digest: of a writer that was killed, perhaps."""
    return frozenset(file for file in path.parent.iterdir() if _own(path, "").fullmatch(file.name))


def _own(path: Path, digest: str) -> re.Pattern[str]:
    """Return the pattern of names of data files of `path`; `digest` is its quantifier for the digest, as in a regular expression."""
    return re.compile(rf"{re.escape(path.name)}\.data(\.[0-9a-f]{{16}}(\.\d+)?){digest}")


def remove_unread(files: frozenset[Path], path: Path) -> None:
    """Remove those of `files` that neither the model at `path` nor another model file of its folder names."""
    for file in files - named_weights(path):
        if not _is_named_beside(file, path):
            file.unlink(missing_ok=True)


def _is_named_beside(file: Path, path: Path) -> bool:
    """Return whether a model file beside `path`, or a copy of one, may name `file`, in any format."""
    name = re.compile(re.escape(file.name.encode()) + rb"(?!\.[0-9a-f]{16})")
    others = (other for other in file.parent.iterdir() if other.name != path.name and _is_model(other))
    return any(_has(other, name) for other in others if not _own(path, "?").fullmatch(other.name))


def _is_model(file: Path) -> bool:
    """Return whether `file` is a model by its name, as m.onnx and m.onnx.bak are."""
    is_known = serialization.registry.get_format_from_file_extension(file.suffix) is not None
    return (is_known or ".onnx" in file.name) and file.is_file() and file.stat().st_size > 0


def _has(file: Path, text: re.Pattern[bytes]) -> bool:
    with file.open("rb") as opened, mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as data:
        return text.search(data) is not None


def _name(path: Path, folder: Path, data: Path) -> str:
    """Return the name for the file `data` beside `path`."""
    plain = f"{path.name}.data"
    if _fits(folder / plain, data) and (not data_of(path) or (folder / plain).exists()):
        return plain
    with data.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()[:16]
    names = (f"{plain}.{digest}{behind}" for behind in chain([""], (f".{number}" for number in count(1))))
    return next(name for name in names if _fits(folder / name, data))


def _fits(target: Path, source: Path) -> bool:
    """Return whether the bytes of `source` may be had at `target`: nothing is there, or a file of these same bytes."""
    if not target.exists():
        return not target.is_symlink()
    return target.is_file() and not target.is_symlink() and filecmp.cmp(source, target, shallow=False)
