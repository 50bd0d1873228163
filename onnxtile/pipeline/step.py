"""A step of a pipeline: a verb with its options, applied to the model as the steps before left it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import field, replace
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Any

from onnxtile.common_options import Source
from onnxtile.declare.option import limits_of, options, read, replaced, reword, reworded, with_progress
from onnxtile.declare.verb import Verb
from onnxtile.system.dataclass import dataclass
from onnxtile.system.errors import NAME_ONLY, Entry, OnnxtileError, UsageError, invalid, nearest
from onnxtile.system.files import is_file_name
from onnxtile.system.progress import Progress
from onnxtile.system.registry import discover
from onnxtile.system.toml_file import Location, TomlFile

# The files that a step writes beside the model, by what its `emit` says.


def formats_by_ending(emit: Iterable[str], step: str, known: Collection[str]) -> dict[str, str]:
    """Return the ending of each file, with the format of `known` (".json" ...) that it is in.

    "json" stands for ".plan.json" where the `step` is plan; another name, as in "before.json", is kept. Raises UsageError.
    """
    form_of = {}
    for entry in emit:
        name = f".{entry.removeprefix('.')}"
        fitting = [ending for ending in known if name.endswith(ending)]
        if not fitting or not is_file_name(name):
            endings = ", ".join(ending.removeprefix(".") for ending in sorted(known))
            raise invalid("emit", entry, hint=f"choose {endings}, or a name before one of them")
        form_of[f".{step}{name}" if name in known else name] = max(fitting, key=len)
    return form_of


DO = "do"
"""The key of a step that names its verb."""

MODELS = "models"
"""The key of a table with other options of a step for some models, by a pattern of their file names."""


@dataclass(frozen=True)
class ModelSoFar:
    """The file that a pipeline reads, the model as the steps so far left it, the listener to progress, and how names of files begin."""

    source: Path
    model: Source
    progress: Progress
    title: str = ""


@dataclass(frozen=True)
class StepResult:
    """A step's result as JSON, the model it made (None: the one it was given), and files to write beside it, by their ending.

    `reason` says in a line why the step, a check, failed.
    """

    content: Mapping[str, Any]
    model: Source | None = None
    files: Mapping[str, bytes] = field(default_factory=dict, repr=False)
    reason: str | None = None


@dataclass(frozen=True)
class PipelineStep:
    """A verb and its options, which have no model yet. `by_model` has other values of some, by a pattern of file names."""

    verb: Verb
    options: Any
    by_model: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The name of the verb."""
        return self.verb.name

    @property
    def emitted(self) -> dict[str, str]:
        """The ending of each file beside the model, with that of its format. Raises UsageError."""
        emit = options(type(self.options)).get("emit")
        return {} if emit is None else formats_by_ending(self.options.emit, self.name, emit.endings)

    def _second_files(self, paths: Mapping[str, Path]) -> dict[str, Path]:
        """Return the further files that may belong to others, by ending, with where they are rendered; `paths` has these by format."""
        from onnxtile.report.format import further_files

        paths_by_ending: dict[str, Path] = {}
        for ending, form in self.emitted.items():
            further = further_files(paths[form]) if form in paths else {}
            paths_by_ending.update((ending.removesuffix(form) + last, path) for last, path in further.items())
        return paths_by_ending

    @property
    def written(self) -> tuple[str, ...]:
        """The ending of each file beside the model, also of those that belong to another."""
        paths = {form: Path(f"x{form}") for form in self.emitted.values()}
        return (*self.emitted, *self._second_files(paths))

    def of(self, model: Path) -> PipelineStep:
        """Return the step for `model`: each option is that of the last pattern that matches and has it. Raises UsageError."""
        others = [given for pattern, given in self.by_model.items() if fnmatchcase(model.name, pattern)]
        if not others:
            return self
        given = {name: value for values in others for name, value in values.items()}
        step = PipelineStep(self.verb, replace(self.options, **given))
        step.require()
        return step

    def require(self) -> None:
        """Raise UsageError for options that make no sense together, or that name files that are not there."""
        paths = [Path(f"x{form}") for form in self.emitted.values()]
        self.verb.emits(self.options, paths)
        self.verb.require(self.options)

    def apply(self, so_far: ModelSoFar) -> StepResult:
        """Do the step. Raises OnnxtileError."""
        settings = replace(self.options, **self.verb.operands(so_far.source, so_far.model))
        try:
            with limits_of(settings).inside():
                outcome = self.verb.run(with_progress(settings, so_far.progress))
        except OnnxtileError as error:
            reword(error, options(type(self.options)), in_toml)
            raise
        content = outcome.result.to_dict()
        shown = content if outcome.emitted is None else outcome.emitted
        paths = {form: Path(f"{so_far.source.stem}{form}") for form in self.emitted.values()}
        for ending, form in self.emitted.items():
            if self._second_files({form: paths[form]}):
                paths[form] = Path(f"{so_far.title}{ending}")  # files that name each other have their own names
        rendered = self.verb.emits(self.options, list(paths.values()))(shown)
        files = {ending: rendered[paths[form]] for ending, form in self.emitted.items() if paths[form] in rendered}
        files |= {other: rendered[path] for other, path in self._second_files(paths).items() if path in rendered}
        return StepResult(
            content,
            getattr(outcome.result, "model", None) if outcome.model is not None else None,
            files,
            outcome.reason,
        )


@cache
def verbs() -> dict[str, Verb]:
    """Return the verbs that can be steps, by name."""
    return {name: verb for name, verb in discover("onnxtile.verbs", Verb).items() if verb.step is not None}


def in_toml(name: str, value: object) -> str:
    """Return a parameter and its value as a pipeline file has them.

    >>> in_toml("io", "foo"), in_toml("dims", Entry("N", 0)), in_toml("conv", True)
    ('io = "foo"', 'dims.N = 0', 'conv = true')
    """
    if value is NAME_ONLY:
        return name
    if isinstance(value, Entry):
        return in_toml(f"{name}.{value.key}", value.value)
    shown = str(value).lower() if isinstance(value, bool) else f'"{value}"' if isinstance(value, str) else str(value)
    return f"{name} = {shown}"


def step_at(source: TomlFile, at: Location, content: Mapping[str, Any]) -> PipelineStep:
    """Return the step that stands `at` a place of a file. Raises UsageError with file and line."""
    known = verbs()
    name = content.get(DO)
    if not isinstance(name, str):
        hint = f'do = "fuse"; choose {", ".join(known)}'
        raise UsageError(f"{source.place((*at, DO))}: a step names its verb", hint=hint)
    if name not in known:
        raise UsageError(f'{source.place((*at, DO))}: invalid do = "{name}"', hint=nearest(name, list(known)))
    tables = content.get(MODELS, {})
    if not (isinstance(tables, dict) and all(isinstance(table, dict) for table in tables.values())):
        hint = '[steps.models."encoder*.onnx"]'
        raise UsageError(f"{source.place((*at, MODELS))}: {MODELS!r} has a table for each pattern", hint=hint)
    general = {key: value for key, value in content.items() if key != MODELS}
    step = _step(source, at, known[name], general)
    by_model = {}
    for pattern, table in tables.items():
        place = (*at, MODELS, pattern)
        for key in (DO, "emit"):
            if key in table:
                raise UsageError(
                    f"{source.place((*place, key))}: {key!r} is the same for all models", hint="leave it out"
                )
        settings = _step(source, place, known[name], {**general, **table}).options
        by_model[pattern] = {key: getattr(settings, key) for key in table}
    return replace(step, by_model=by_model)


def _step(source: TomlFile, at: Location, verb: Verb, content: Mapping[str, Any]) -> PipelineStep:
    """Return the step with the options of `content`, `at` a place of a file. Raises UsageError with file and line."""
    step = PipelineStep(verb, _options(source, at, verb, content))
    try:
        step.require()
    except UsageError as error:
        raise _error_at(source, at, content, error) from None
    return step


def _options(source: TomlFile, at: Location, verb: Verb, content: Mapping[str, Any]) -> Any:
    declaration: Any = verb.step
    fields = options(declaration)
    given = {name: value for name, value in content.items() if name != DO}
    alien = next((name for name in given if name not in fields), None)
    if alien is not None:
        gone = replaced(declaration, alien, verb.name)
        if gone is not None:
            raise _error_at(source, (*at, alien), content, gone)
        raise UsageError(f"{source.place((*at, alien))}: unknown key {alien!r}", hint=nearest(alien, sorted(fields)))
    try:
        settings = read(declaration, {**verb.operands(None, None), **given})
    except UsageError as error:
        raise _error_at(source, at, content, error) from None
    folder = source.path.parent.absolute()
    return replace(settings, **{name: _from_folder(getattr(settings, name), folder) for name in given})


def _error_at(source: TomlFile, at: Location, content: Mapping[str, Any], error: UsageError) -> UsageError:
    """Return `error` with the file and the line of the option that it is about."""
    message, hint = error.worded(in_toml)
    line = source.place((*at, *_option_at_fault(content, error, message)))
    step: Any = verbs()[content[DO]].step
    known = options(step)
    message = f"{line}: {reworded(message, known, in_toml)}"
    return UsageError(message, hint=None if hint is None else reworded(hint, known, in_toml))


def _option_at_fault(content: Mapping[str, Any], error: UsageError, message: str) -> tuple[str, ...]:
    """Return the option that an error is about: one that it names, or whose value it shows."""
    for name, value in error.given.items():
        if name in content:
            return (name, value.key) if isinstance(value, Entry) else (name,)
    for option, value in content.items():
        shown = [repr(text) for text in (value if isinstance(value, list) else [value]) if isinstance(text, str)]
        if option != DO and any(text in message for text in (f"--{option.replace('_', '-')} ", *shown)):
            return (option,)
    return ()


def _from_folder(value: Any, folder: Path) -> Any:
    """Return a value with files named from `folder`: paths, and texts that end as TOML files do."""
    if isinstance(value, Path):
        return folder / value
    if isinstance(value, tuple):
        return tuple(_from_folder(entry, folder) for entry in value)
    if isinstance(value, str) and value.endswith(".toml"):
        return str(folder / value)
    return value
