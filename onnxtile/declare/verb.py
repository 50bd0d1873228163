"""The declaration of a verb: a frozen dataclass whose fields are its arguments and options; all else is derived from it.

```python
@dataclass(frozen=True)
class TrimOptions(SizeOptions):
    model: Annotated[Source, Positional("IN", "an ONNX model")]
    _: KW_ONLY
    passes: Annotated[int, Option("how often to trim", "N")] = 2
```

A field annotated with an Option is `--passes N` on the command line, `passes = N` in a pipeline, `passes=N` in Python, and a row of the
tables in docs/. The type of the field says how its value is read; an Option may name another `kind`.
"""

from __future__ import annotations

import ast
import inspect
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import MISSING, field, fields, is_dataclass, replace
from enum import Enum
from functools import cache, wraps
from operator import attrgetter
from pathlib import Path
from types import NoneType, UnionType
from typing import (
    TYPE_CHECKING,
    Any,
    ClassVar,
    Literal,
    ParamSpec,
    Protocol,
    TypeAlias,
    TypeVar,
    Union,
    cast,
    get_args,
    get_origin,
    get_type_hints,
)

from onnxtile.declare.values import ANY, COUNT, FILE, FLAG, TEXT, Unreadable, ValueKind, path_of
from onnxtile.system.dataclass import dataclass
from onnxtile.system.errors import (
    NAME_ONLY,
    Entry,
    OnnxtileError,
    QueryError,
    UsageError,
    Wording,
    about_options,
    capped,
    in_python,
    invalid,
    nearest,
)
from onnxtile.system.files import require_writable, write_whole
from onnxtile.system.long_work import RunLimits, silent
from onnxtile.system.registry import discover, imported
from onnxtile.system.text import whole

if TYPE_CHECKING:
    import onnx_ir as ir

    from onnxtile.model.save import Draft


OPTIONS = "Options"
SIZES = "Sizes and inputs"
WRITING = "Writing"
REPORTING = "Reporting"
"""Headings of options. The first is for options without a heading; the others come after the headings of one verb."""

P = ParamSpec("P")
O = TypeVar("O")  # noqa: E741 - options
R = TypeVar("R")
O_contra = TypeVar("O_contra", contravariant=True)
R_co = TypeVar("R_co", covariant=True)


@dataclass(frozen=True)
class Choices:
    """Names that an option takes, known elsewhere and loaded only when they are asked for.

    `home` is "module:name" of an iterable, a mapping, an enum, or a function that returns one; `also` are further names. Where the set is
    `open`, they are completed, and other texts are taken too.
    """

    home: str = ""
    also: tuple[str, ...] = ()
    open: bool = False

    def names(self) -> list[str]:
        """Return the names."""
        if not self.home:
            return list(self.also)
        source = imported(self.home)
        names = source() if callable(source) and not isinstance(source, type) else source
        return [*self.also, *(str(name.value if isinstance(name, Enum) else name) for name in names)]


@dataclass(frozen=True)
class Option:
    """An option: its help, how its value is shown, and what its field's name and type do not say.

    `flags` are its names on the command line, where these are not `--` and the field's name; one that begins with `--no-` turns a flag off.
    `default` tells the default where the value in the declaration does not. `endings` are those of the files that it names. Help shows
    those options first that are `main`.
    """

    help: str
    metavar: str = ""
    flags: tuple[str, ...] = ()
    heading: str = OPTIONS
    default: str = ""
    kind: ValueKind | None = None
    choices: Choices | None = None
    endings: Choices | None = None
    main: bool = False


@dataclass(frozen=True)
class Positional:
    """An argument: how it is shown, and its help."""

    metavar: str
    help: str
    kind: ValueKind = FILE
    choices: Choices | None = None
    default: str = ""


@dataclass(frozen=True)
class VerbParameter:
    """A field of a declaration: an argument or an option, with all that was derived."""

    name: str
    about: Option | Positional
    kind: ValueKind
    default: Any
    choices: Choices | None = None
    optional: bool = False
    hint: Any = None
    """The type of its values."""

    @property
    def is_required(self) -> bool:
        """Whether it has no default."""
        return self.default is MISSING

    @property
    def flags(self) -> tuple[str, ...]:
        """Its names on the command line, the long one last."""
        flags = self.about.flags if isinstance(self.about, Option) else ()
        return flags or (f"--{self.name.replace('_', '-')}",)

    @property
    def metavar(self) -> str:
        """Its value as help shows it."""
        listed = "|".join(self.choices.names()) if self.choices is not None and not self.choices.home else ""
        return self.about.metavar or listed or self.kind.pair

    @property
    def endings(self) -> list[str]:
        """The endings of the files that it names, where these are known."""
        known = self.about.endings if isinstance(self.about, Option) else None
        return [] if known is None else known.names()

    def has_choice(self, text: str) -> bool:
        """Return whether `text` is one of the names that it takes."""
        return self.choices is not None and text in self.choices.names()

    @property
    def shown_default(self) -> str:
        """Its default as help shows it; empty where it is not said."""
        text = self.about.default
        if text or self.default is MISSING or self.default is None or isinstance(self.default, bool):
            return text
        return "" if self.default == () else str(self.default)

    def read(self, value: Any) -> Any:
        """Return the value that `value` stands for. Raises UsageError that names the parameter."""
        if value is None and self.optional:
            return None
        try:
            value_read = self.kind.read(value)
        except Unreadable as error:
            shown = value[0] if isinstance(value, list) and len(value) == 1 else value
            shown = shown if error.key is None else Entry(error.key, value[error.key])
            raise invalid(self.name, shown, reason=error.reason, hint=error.hint or "") from None
        if self.choices is not None and not self.choices.open:
            for entry in value_read if isinstance(value_read, tuple) else (value_read,):
                if entry not in (names := self.choices.names()):
                    raise invalid(self.name, entry, names)
        return value_read


@cache
def parameters(declaration: type) -> dict[str, VerbParameter]:
    """Return the arguments and options that a declaration has, by the names of its fields."""
    hints = get_type_hints(declaration, include_extras=True)
    by_name = {}
    for option in fields(declaration):
        about = next(
            (mark for mark in getattr(hints[option.name], "__metadata__", ()) if isinstance(mark, Option | Positional)),
            None,
        )
        if about is not None:
            hint = get_args(hints[option.name])[0]
            kind, choices = _kind(hint)
            optional = hint is Any or NoneType in get_args(hint)
            by_name[option.name] = VerbParameter(
                option.name, about, about.kind or kind, option.default, about.choices or choices, optional, hint
            )
    return by_name


def options(declaration: type) -> dict[str, VerbParameter]:
    """Return the options that a declaration has, without its arguments."""
    return {
        name: parameter for name, parameter in parameters(declaration).items() if isinstance(parameter.about, Option)
    }


def _kind(hint: Any) -> tuple[ValueKind, Choices | None]:
    """Return how values of a type are read, and the choices that it names."""
    plain = [part for part in get_args(hint) if part is not NoneType] if NoneType in get_args(hint) else [hint]
    first = plain[0]
    if get_origin(first) is Literal:
        return TEXT, Choices(also=get_args(first))
    kinds = {bool: FLAG, int: COUNT, str: TEXT, Path: FILE}
    return kinds.get(first, ANY), None


def read(declaration: Callable[P, O], given: Mapping[str, Any]) -> O:
    """Return the options of a `declaration` that has the values `given`, each read as its kind says. Raises UsageError."""
    known = parameters(declaration)
    if not callable(given.get("progress", silent)):
        raise invalid("progress", given["progress"], reason="give a function that takes the name of a stage")
    values = {name: known[name].read(value) if name in known else value for name, value in given.items()}
    return declaration(**values)  # type: ignore[call-arg]


def narrowed(declaration: type[O], settings: Any, **given: Any) -> O:
    """Return the options of a `declaration` that takes from `settings` what both have, and the rest from `given`."""
    shared = {field.name for field in fields(declaration)} & vars(settings).keys()  # type: ignore[arg-type]
    return declaration(**{**{name: getattr(settings, name) for name in shared}, **given})


def changed(settings: Any) -> list[str]:
    """Return the names of the options that differ from their defaults."""
    known = options(type(settings))
    return [name for name, parameter in known.items() if getattr(settings, name) != parameter.default]


def names(*declarations: type) -> set[str]:
    """Return the names of all arguments and options of some declarations."""
    return {name for declaration in declarations for name in parameters(declaration)}


def require_within(settings: Any, allowed: Collection[str], message: str, hint: str) -> None:
    """Raise UsageError for an option of `settings` that differs from its default and is not `allowed`; `message` names it as {option}."""
    alien = next((name for name in changed(settings) if name not in allowed), None)
    if alien is not None:
        raise about_options(message.replace("{option}", f"{{{alien}}}"), hint=hint)


def limits_of(settings: Any) -> RunLimits:
    """Return the limits of runs that some options name; no limits for options that name none."""
    limits: RunLimits = getattr(settings, "run_limits", RunLimits())
    return limits


class VerbFunction(Protocol[P, O_contra, R_co]):
    """The function of a verb: called with the arguments and options of its declaration, or from options that were read before."""

    def __call__(self, *args: P.args, **given: P.kwargs) -> R_co:
        """Do the work; an error names options as Python has them."""
        ...

    @property
    def from_options(self) -> Callable[[O_contra], R_co]:
        """The same on options that were read; an error names options as their declaration does."""
        ...


def declared(declaration: Callable[P, O]) -> Callable[[Callable[[O], R]], VerbFunction[P, O, R]]:
    """Return a decorator: the function takes the arguments and options of `declaration` as a call in Python has them.

    Its signature and its text are written when `described` asks for them: no command does.
    """

    def decorate(body: Callable[[O], R]) -> VerbFunction[P, O, R]:
        @wraps(body)
        def call(*args: P.args, **given: P.kwargs) -> R:
            signature = inspect.signature(declaration)
            try:
                bound = signature.bind(*args, **given)
            except TypeError as error:
                message = f"{body.__name__}() {error}"
                raise _unfit(message, given, signature) from None
            settings = read(declaration, bound.arguments)
            try:
                with limits_of(settings).inside():
                    return body(settings)
            except OnnxtileError as error:
                reword(error, options(declaration), in_python)  # type: ignore[arg-type]
                raise

        call.declaration, call.from_options = declaration, body  # type: ignore[attr-defined]
        return cast(VerbFunction[P, O, R], call)

    return decorate


def described(function: Any) -> Any:
    """Return `function`; that of a verb gets the signature and the text that its declaration gives it."""
    declaration, body = getattr(function, "declaration", None), getattr(function, "from_options", None)
    if declaration is not None and body is not None:
        signature = inspect.signature(declaration)
        function.__signature__ = _readable(signature, declaration, body.__annotations__.get("return"))
        function.__doc__ = _doc(body.__doc__ or "", declaration)
    return function


class _Word:
    """A part of a signature as people read it."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __repr__(self) -> str:
        return self.text


_WRITTEN_OUT = {"ModelArgument": "Source", "PatternsOption": "str | Iterable[str | tuple[str, str] | Pattern]"}
"""Types by the names of their annotations, where a declaration is read without the modules that define them."""


def _readable(signature: inspect.Signature, declaration: Any, returned: Any) -> inspect.Signature:
    """Return a signature whose types are those alone, without what a command says of them, and whose functions are names."""
    marked = parameters(declaration)
    known = [
        parameter.replace(
            annotation=_Word(_type_alone(parameter.annotation, marked.get(parameter.name))),
            default=_Word(parameter.default.__name__) if inspect.isfunction(parameter.default) else parameter.default,
        )
        for parameter in signature.parameters.values()
    ]
    return signature.replace(parameters=known, return_annotation=_Word(_type_alone(returned).removeprefix("onnxtile.")))


def _type_alone(annotation: Any, parameter: VerbParameter | None = None) -> str:
    """Return the text of a type; that of a parameter with its aliases written out."""
    if not isinstance(annotation, str):
        return getattr(annotation, "__name__", str(annotation))
    if annotation in _WRITTEN_OUT:
        return _WRITTEN_OUT[annotation]
    shown = "Any" if parameter is None else _type_text(parameter.hint)
    if "Any" not in shown or "Any" in annotation:
        return shown
    parsed = ast.parse(annotation, mode="eval").body  # Any stands for a class that the declaration does not import
    is_marked = isinstance(parsed, ast.Subscript) and ast.unparse(parsed.value) == "Annotated"
    return ast.unparse(parsed.slice.elts[0]) if is_marked else annotation  # type: ignore[attr-defined]


def _type_text(hint: Any) -> str:
    """Return a type as it is written, without the names of modules, and without the classes of values that were read already."""
    if hint in {NoneType, ...}:
        return "None" if hint is NoneType else "..."
    origin, inside = get_origin(hint), get_args(hint)
    if origin in {Union, UnionType}:
        return " | ".join(_type_text(part) for part in inside if not is_dataclass(part))
    if origin is Literal:
        return f"Literal[{', '.join(map(repr, inside))}]"
    name = hint.__name__ if origin is None else origin.__name__
    return f"{name}[{', '.join(map(_type_text, inside))}]" if inside else name


def _unfit(message: str, given: Mapping[str, Any], signature: inspect.Signature) -> TypeError:
    """Return the error for arguments that a function does not take; it has the name that may be meant."""
    known = list(signature.parameters)
    unknown = next((name for name in given if name not in known), None)
    return TypeError(
        message if unknown is None else f"{message} ({nearest(unknown, known, 'help() lists what there is')})"
    )


def _doc(text: str, declaration: Any) -> str:
    """Return the docstring of a function with a line for each option."""
    known = sorted(parameters(declaration).items(), key=lambda entry: isinstance(entry[1].about, Option))
    rows = [
        f"    {name}: {_meaning(parameter)}{_default_shown(parameter)}{_forms(parameter)}" for name, parameter in known
    ]
    return inspect.cleandoc(text) + "\n\nArguments and options:\n" + "\n".join(rows) + "\n"


def _meaning(parameter: VerbParameter) -> str:
    """Return the help of a parameter; that of a flag such as --no-verify describes the parameter `verify` when it is False."""
    negated = any(flag == f"--no-{parameter.name}" for flag in parameter.flags)
    return f"if False, {parameter.about.help}" if negated else parameter.about.help


def _default_shown(parameter: VerbParameter) -> str:
    return f" [{parameter.shown_default}]" if parameter.shown_default else ""


def _forms(parameter: VerbParameter) -> str:
    """Return a line with an example of each form of the value; nothing where its type says all."""
    forms = ", ".join(f"{parameter.name}={form}" for form in parameter.kind.forms)
    return f"\n        {forms}" if forms else ""


def with_progress(settings: O, progress: Any) -> O:
    """Return `settings` with the receiver of the stages of long work, where its verb takes one."""
    return replace(settings, progress=progress) if hasattr(settings, "progress") else settings  # type: ignore[type-var]


# Messages in the words of their reader: what the code calls `--max-k 64` is `max_k=64` in Python, and `max_k = 64` in a pipeline.

_FLAG = re.compile(r"(--[a-z][a-z-]*)(?:[ =]((?:[^\s,;()]|\([^()]*\))+))?")
"""An option in a message, and the next word, which may be its value."""


class _Dots:
    """Stands for a number that the reader knows."""

    def __repr__(self) -> str:
        return "..."


def reword(error: OnnxtileError, known: Mapping[str, VerbParameter], wording: Wording) -> None:
    """Let `error` say each of the `known` parameters as `wording` has it. A query error shows the query as it is."""
    if isinstance(error, QueryError):
        return
    drop_advice(error, known)
    message, hint = error.worded(wording)
    error.say(reworded(message, known, wording), None if hint is None else reworded(hint, known, wording))


def drop_advice(error: OnnxtileError, known: Mapping[str, VerbParameter]) -> None:
    """Take the advice to leave out the runs from the hint of `error`, where the `known` parameters of a verb have no such option."""
    if "verify" not in known:
        error.drop_hint("--no-verify")


def reworded(text: str, known: Mapping[str, VerbParameter], wording: Wording) -> str:
    """Return `text` with each option of the command line as `wording` has it."""
    flags = {flag: parameter for parameter in known.values() for flag in _flags(parameter)}

    def shown(match: re.Match[str]) -> str:
        flag, word = match[1], match[2] or ""
        if flag not in flags:
            return match[0]
        parameter = flags[flag]
        if parameter.kind.flag:
            return wording(parameter.name, not flag.startswith("--no-")) + match[0][len(flag) :]
        value = _value(parameter, word)
        return wording(parameter.name, value) + (match[0][len(flag) :] if value is NAME_ONLY else "")

    return _FLAG.sub(shown, text)


def _flags(parameter: VerbParameter) -> list[str]:
    return [name for flag in parameter.flags for name in flag.split("/") if name.startswith("--")]


def _value(parameter: VerbParameter, word: str) -> object:
    """Return the value that a word is; NAME_ONLY where it belongs to the sentence."""
    bare = word.strip("'")
    if parameter.kind.pair and "=" in bare:
        key, _, value = bare.rpartition("=")
        return Entry(key, _number(value) if parameter.kind.from_text("0") == 0 else value)
    if whole(word) is not None:
        return int(word)
    return bare if parameter.has_choice(bare) else NAME_ONLY


def _number(text: str) -> object:
    number = whole(text)
    if number is not None:
        return number
    return _Dots() if text.isupper() or not text.strip(".") else text


# A verb: what the command line and pipelines derive a command and a step from. Each file of `onnxtile.verbs` defines one.


Content = Mapping[str, Any]
"""A result as JSON."""
Rendered = Callable[[Content], Mapping[Path, bytes]]
"""Returns the content of each file from a result."""


@dataclass(frozen=True)
class Outcome:
    """What a verb did: its result, the table of `onnxtile.report` that shows it (none where this is empty), and what is written.

    `model` is the model that it made, `save` writes another result to a path. `text` goes to the output file, or to stdout without one,
    `note` to stderr: with --quiet only beside a `reason`. `emitted` is the JSON that --emit writes (None: the result's). `reason` says in a
    line why the verb, a check, failed.
    """

    result: JsonFields
    table: str
    model: ir.Model | Draft | None = None
    save: Callable[[Path], None] | None = None
    text: str = ""
    note: str = ""
    emitted: Content | None = None
    reason: str | None = None


def _nothing(_options: Any) -> None:
    return None


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
    emits: Callable[[Any, Sequence[Path]], Rendered] = lambda _options, _paths: lambda _content: {}
    require: Callable[[Any], None] = _nothing
    operands: Callable[[Any, Any], Mapping[str, Any]] = lambda _source, model: {"model": model}
    defaults: Mapping[str, Any] = field(default_factory=dict)


# The JSON of a result.


_SCALARS = (str, int, float, NoneType)
PLAIN = frozenset((*_SCALARS, bool))
"""Types of values that JSON has."""
_LISTS = (list, tuple)


def ready(value: Any) -> Any:
    """Return `value` ready for JSON."""
    if isinstance(value, _SCALARS):  # a union that is written here is made anew for each value
        return value
    if isinstance(value, _LISTS):
        return [entry if type(entry) in PLAIN else ready(entry) for entry in value]
    if hasattr(value, "to_dict"):
        return value.to_dict()
    return {key: ready(entry) for key, entry in value.items()} if isinstance(value, Mapping) else value


class JsonFields:
    """A dataclass whose fields are its JSON, or the fields and properties that `JSON` names, with blanks between them.

    "min=range.low" is the field `low` of the field `range` under the key "min". What ends in "?" is left out where it is empty.
    """

    JSON: ClassVar[str] = ""

    def to_dict(self) -> dict[str, Any]:
        """Return the fields, ready for JSON."""
        kind: Any = type(self)
        keys, values_of, optional = _json_fields(kind)  # a large model has this asked of ten thousand tensors
        values = zip(keys, values_of(self), strict=False)
        content = {key: value if type(value) in PLAIN else ready(value) for key, value in values}
        for key in optional:
            if not content[key]:
                del content[key]
        return content


@cache
def _json_fields(kind: Any) -> tuple[Sequence[str], Callable[[Any], Any], Sequence[str]]:
    """Return the keys of the JSON of a class, what gives all values, and the keys of those that may be left out."""
    words = kind.JSON.split() or [entry.name for entry in fields(kind)]
    pairs = [word.removesuffix("?").partition("=") for word in words]
    keys = [key for key, _, _ in pairs]
    values_of = attrgetter(
        *(name or key for key, _, name in pairs), "JSON", "JSON"
    )  # of one name alone it gives no tuple
    return keys, values_of, [key for key, word in zip(keys, words, strict=True) if word.endswith("?")]


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
