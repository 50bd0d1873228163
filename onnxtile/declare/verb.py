"""A verb: what the command line and pipelines derive a command and a step from. Each file of `onnxtile.verbs` defines one."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field, fields
from functools import cache
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, TypeAlias

from onnxtile.declare.values import path_of
from onnxtile.system.dataclass import dataclass
from onnxtile.system.errors import UsageError, capped
from onnxtile.system.files import require_writable, write_whole
from onnxtile.system.registry import discover

if TYPE_CHECKING:
    import onnx_ir as ir

    from onnxtile.model.stream import Draft


Content = Mapping[str, Any]
"""A result as JSON."""
Rendered = Callable[[Content], Mapping[Path, bytes]]
"""Returns the content of each file from a result."""


class Result(Protocol):
    """A typed result of a verb."""

    def to_dict(self) -> dict[str, Any]:
        """Return the result as JSON."""
        ...


@dataclass(frozen=True)
class Outcome:
    """What a verb did: its result, the table of `onnxtile.report` that shows it (none where this is empty), and what is written.

    `model` is the model that it made, `save` writes another result to a path. `text` goes to the output file, or to stdout without one,
    `note` to stderr: with --quiet only beside a `reason`. `emitted` is the JSON that --emit writes (None: the result's). `reason` says in a
    line why the verb, a check, failed.
    """

    result: Result
    table: str
    model: ir.Model | Draft | None = None
    save: Callable[[Path], None] | None = None
    text: str = ""
    note: str = ""
    emitted: Content | None = None
    reason: str | None = None


def _no_files(_options: Any, _paths: Sequence[Path]) -> Rendered:
    return lambda _content: {}


def _nothing(_options: Any) -> None:
    return None


def _on_the_model(_source: Any, model: Any) -> Mapping[str, Any]:
    return {"model": model}


@dataclass(frozen=True)
class Verb:
    """A verb: its name, the declaration of its command, and its function from the options to an outcome.

    The docstring of `command` is the help, with command lines below "Examples:". `step` is the declaration of its step in a pipeline, None
    where it has none; `operands` gives that step its arguments, from the model that the pipeline read and the one that the step before
    left. `writes` returns the ending of the model that the options ask for (without .onnx), None where no model is written. `emits` returns
    what renders the files of `--emit`, from the options and the paths, and raises UsageError. `require` raises UsageError for options that
    contradict each other, before any model is read. `defaults` differ on the command line from those in Python.
    """

    name: str
    command: type
    run: Callable[[Any], Outcome]
    step: type | None = None
    writes: Callable[[Any], str | None] = _nothing
    emits: Callable[[Any, Sequence[Path]], Rendered] = _no_files
    require: Callable[[Any], None] = _nothing
    operands: Callable[[Any, Any], Mapping[str, Any]] = _on_the_model
    defaults: Mapping[str, Any] = field(default_factory=dict)


# The JSON of a result.


def _ready(value: Any) -> Any:
    """Return `value` ready for JSON."""
    if value is None or isinstance(value, str | int | float):
        return value
    if hasattr(value, "to_dict"):
        return value.to_dict()
    if isinstance(value, list | tuple):
        return [_ready(entry) for entry in value]
    return {key: _ready(entry) for key, entry in value.items()} if isinstance(value, Mapping) else value


class JsonFields:
    """A dataclass whose fields are its JSON, or the fields and properties that `JSON` names, with blanks between them.

    "min=range.low" is the field `low` of the field `range` under the key "min". What ends in "?" is left out where it is empty.
    """

    JSON: ClassVar[str] = ""

    def to_dict(self) -> dict[str, Any]:
        """Return the fields, ready for JSON."""
        kind: Any = type(self)
        values = ((key, value_of(self), is_optional) for key, value_of, is_optional in _json_fields(kind))
        return {key: _ready(value) for key, value, is_optional in values if value or not is_optional}


@cache
def _json_fields(kind: Any) -> tuple[tuple[str, Callable[[Any], Any], bool], ...]:
    """Return the key, what gives the value, and whether it may be left out, of each entry of the JSON of a class."""
    words = kind.JSON.split() or [entry.name for entry in fields(kind)]
    pairs = [word.removesuffix("?").partition("=") for word in words]
    return tuple(
        (key, attrgetter(name or key), w.endswith("?")) for w, (key, _, name) in zip(words, pairs, strict=True)
    )


# The result of a verb: its JSON, one line of text, a table for notebooks, and the files it can be written to.

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


class VerbResult(JsonFields, ABC):
    """The result of one verb, whose fields are its JSON unless it says otherwise. `verb` names it as the command line does.

    A subclass that is a dataclass is declared with `repr=False`: results hold models and long lists.
    """

    verb: ClassVar[str]

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
    target = path_of(path)
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
