"""Faults of a command that read a mutant: each is told in a word, so that the same ones count as one."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Iterator
from pathlib import Path

from tests.hostile.cases import Case
from tests.hostile.forked import Ended

SECONDS = 20.0
"""Of processor time that one command may take."""
BYTES = 2 * 2**30
"""Of memory that one command may take."""
_LONGEST = 500
_CANARIES = {
    ".html": ("<script>canary", "</script><script>"),
    ".svg": ("<script>canary", "</script><script>"),
    ".h": ("*/ canary",),
    ".xml": ("<script>canary",),
}
"""What names of mutants try in a file of each kind, and may not be there as it is."""


def faults(case: Case, folder: Path, ended: Ended) -> list[str]:
    """Return what is wrong with the end of the command, its streams and its files; nothing where all is well."""
    return [*_of_end(case, ended), *_of_streams(case, ended), *_of_files(case, folder, ended)]


def _of_end(_case: Case, ended: Ended) -> Iterator[str]:
    if ended.timed_out:
        yield "hang"
    elif ended.code not in {0, 1, 2}:
        yield f"exit {ended.code}"
    if ended.processor_seconds > SECONDS and not ended.timed_out:
        yield f"slow: {ended.processor_seconds:.0f} s"
    if ended.peak_bytes > BYTES:
        yield f"memory: {ended.peak_bytes / 2**30:.1f} GiB"


def _of_streams(case: Case, ended: Ended) -> Iterator[str]:
    lines = ended.err.split("\n")[:-1]
    said = [line for line in lines if not line.startswith("warning: ")]
    if "Traceback" in ended.err:
        yield "traceback"
    if "internal error" in ended.err or "internal error" in ended.out:
        yield "internal error"
    if ended.err and not ended.err.endswith("\n"):
        yield "unended line on stderr"
    if "-q" in case.arguments and len(lines) != len(said):
        yield "a warning with -q"
    if ended.code == 2 and not (said and said[0].startswith(("error: ", "Usage"))):
        yield "exit 2 without an error, or with another line before it"
    if len(said) > 1 and not _is_caret(said):
        yield "several lines on stderr"
    if ended.code == 0 and said and case.arguments[0] != "pattern":
        yield "exit 0 and a line on stderr"
    if any(len(line) > _LONGEST for line in lines):
        yield "a long line on stderr"
    if any(not line.isprintable() for line in lines):
        yield "control characters on stderr"
    yield from _of_stdout(case, ended)


def _is_caret(said: list[str]) -> bool:
    """Return whether the lines after the first show a query and where it is wrong."""
    return len(said) == 3 and set(said[2]) <= {" ", "^", "~", "."}


def _of_stdout(case: Case, ended: Ended) -> Iterator[str]:
    if ("-o", "-") in zip(case.arguments, case.arguments[1:], strict=False) or {"-h", "--help"} & {*case.arguments}:
        return
    if ended.code in {0, 1} and ("--json", "-") in zip(case.arguments, case.arguments[1:], strict=False):
        try:
            json.loads(ended.out, parse_constant=_refuse)
        except ValueError:
            yield "stdout is no JSON"
    if any(not char.isprintable() and char != "\n" for char in ended.out):
        yield "control characters on stdout"


def _refuse(name: str) -> None:
    raise ValueError(name)


def _of_files(case: Case, folder: Path, ended: Ended) -> Iterator[str]:
    if any((folder.parent / "tmp").iterdir()):
        yield "temporary files are left"
    for name, content in case.files.items():
        if not (folder / name).is_file() or (folder / name).read_bytes() != content:
            yield f"{name} was changed"
    given = {*case.files, *case.links, "pipe", "out"}
    for name in _names(folder) - given:
        if ended.code == 2 or not _is_default(name):
            yield f"a file was written outside of the output folder: {name[:40]!r}"
    beside = {"tmp", "stdout", "stderr", "outside.bin", folder.name}
    if _names(folder.parent) - beside or (folder.parent / "outside.bin").read_bytes() != bytes(4096):
        yield "a file was written beside the folder"
    written = [path for path in (folder / "out").rglob("*") if path.is_file()]
    if ended.code == 2 and written and case.arguments[0] != "run":
        yield f"exit 2 and {written[0].name} is there"
    if any(".onnxtile." in path.name for path in written):
        yield "a temporary file is in the output folder"
    for path in written:
        yield from _of_text(path)


def _names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def _is_default(name: str) -> bool:
    """Return whether `name` is that of a result whose place nobody named: beside the input. A pipeline may name its reports anyhow."""
    known = r"\.(fused|tiled|planned|fit|unfused|deploy)(\.[a-z.]+)?\.?|^base\..*\.report\.json$"
    return re.search(known, name) is not None or name in {"p.html", "n.csv", "p.tflm"}


def _of_text(path: Path) -> Iterator[str]:
    if path.suffix in {".onnx", ".npz", ".png", ".bin", ".data", ".tflite"}:
        return
    text = path.read_bytes().decode("utf-8", "surrogateescape")
    for canary in _CANARIES.get(path.suffix, ()):
        if canary in text:
            yield f"{canary!r} as it is in a {path.suffix}"
    odd = {char for char in text if not char.isprintable() and char not in "\n\r\t"}
    if odd - {"\u00ad", "\u00a0", "\u2009", "\u200b"}:
        yield f"control characters in a {path.suffix}: {sorted(odd)[:3]}"
    if path.suffix == ".csv" and any(
        cell.startswith(("=", "@", "\t")) for row in csv.reader(text.splitlines()) for cell in row
    ):
        yield "a formula in a .csv"
