"""A verb: what the command line and pipelines derive a command and a step from. Each file of `onnxtile.verbs` defines one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

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
    """What a verb did: its result, the table of `onnxtile.report.tables` that shows it (none where this is empty), and what is written.

    `model` is the model that it made, `save` writes another result to a path. `text` goes to the output file, or to stdout without one,
    `note` to stderr: with --quiet only beside a `reason`. `emitted` is the JSON that --emit writes (None: the result's). Where the verb is
    a check that said no, `reason` says so in a line.
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
