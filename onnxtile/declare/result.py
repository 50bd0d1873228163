"""The result of a verb: its JSON, one line of text, a table for notebooks, and the files it can be written to."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, TypeAlias

from onnxtile.system.errors import UsageError, capped
from onnxtile.system.files import require_writable, write_whole
from onnxtile.system.registry import discover

ResultWriter: TypeAlias = Callable[[Mapping[str, Any], Path], bytes]
"""Returns the content of the file at a path, from the JSON of a result."""
_LONGEST = 160
"""Characters of a summary that are shown."""


@dataclass(frozen=True)
class ResultView:
    """How the results of the verb `name` are shown: `html` in a notebook, `writers` in files, by the ending of the name.

    Each instance in a module of `onnxtile.report.views` is found by its existence.
    """

    name: str
    html: Callable[[Mapping[str, Any]], str]
    writers: Callable[[], Mapping[str, ResultWriter]]


class VerbResult(ABC):
    """The result of one verb. `verb` names it as the command line does.

    A subclass that is a dataclass is declared with `repr=False`: results hold models and long lists.
    """

    verb: ClassVar[str]

    @abstractmethod
    def to_dict(self) -> dict[str, Any]:
        """Return the JSON of the result, as `--json` writes it."""

    @property
    @abstractmethod
    def summary(self) -> str:
        """The result in a few words, on one line."""

    def write(self, path: str | Path) -> None:
        """Write the result to `path`, whole or not at all; the ending of the name selects the format.

        Raises UsageError for an ending that no format has, and where the file cannot be written.
        """
        write_result(self.to_dict(), self.verb, path)

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {capped(self.summary, _LONGEST)}>"

    def _repr_html_(self) -> str:
        """Return the HTML for a notebook."""
        return _view(self.verb).html(self.to_dict())


def write_result(content: Mapping[str, Any], verb: str, path: str | Path) -> None:
    """Write `content`, the result of `verb` as JSON, to `path`, as `VerbResult.write` does. Raises UsageError."""
    target = Path(path)
    written = writer_of(verb, target)(content, target)
    require_writable(target)
    write_whole(target, written)


def _view(verb: str) -> ResultView:
    return discover("onnxtile.report.views", ResultView)[verb]


def writer_of(verb: str, path: Path) -> ResultWriter:
    """Return the writer whose ending is the longest that fits the name of `path`. Raises UsageError."""
    writers = _view(verb).writers()
    fitting = [ending for ending in writers if path.name.endswith(ending)]
    if fitting:
        return writers[max(fitting, key=len)]
    raise UsageError(f"{path}: no format of {verb} has this ending", hint=f"choose {', '.join(sorted(writers))}")
