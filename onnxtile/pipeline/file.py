"""Pipeline files: steps, each a command with its options, and budgets that make a run a check."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import field, replace
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal

import pydantic

from onnxtile.common_options import Source
from onnxtile.declare.values import RunChoice, Unreadable, read_count, read_limits, read_size
from onnxtile.declare.verb import JsonFields, Verb, limits_of, options, reword, reworded, with_progress
from onnxtile.declare.verb import read as read_options
from onnxtile.system.dataclass import dataclass
from onnxtile.system.errors import NAME_ONLY, Entry, OnnxtileError, UsageError, invalid, nearest
from onnxtile.system.files import is_file_name, real, require_readable
from onnxtile.system.long_work import Progress, RunLimits
from onnxtile.system.registry import discover
from onnxtile.system.toml_file import Location, TomlFile, read

# The figures of a model: the few numbers of each step that a summary shows and budgets bound.


def figures(results: Iterable[tuple[str, Mapping[str, Any]]]) -> dict[str, Any]:
    """Return the figures of a model from the results of its steps, each with the step's name: a later step's count.

    `already` has, by meta-op, the nodes that do the work of the whole one, counted by operator: fuse leaves them. `arena` is the bytes of
    all arenas (None where a tensor is unplanned); `ram` and `flash` are those of a program in C (None where no compiler counted them);
    `error` the worst relative error of all steps that compared (None where that has no bound); `not_compared` the outputs that a step
    could not compare, by name with the reason.
    """
    reached: dict[str, Any] = {}
    fused: Counter[str] = Counter()
    already: dict[str, Mapping[str, int]] = {}
    errors = []
    left: dict[str, str] = {}
    for name, result in results:
        if name == "fuse":
            fused.update({pattern["name"]: pattern["fused"] for pattern in result["patterns"]})
            already |= {pattern["name"]: pattern["already"] for pattern in result["patterns"] if pattern.get("already")}
        if "nodes_after" in result:
            reached["nodes"] = result["nodes_after"]
        if name == "tile":
            reached["tiles"] = sum(layer["matmuls"] for layer in result["tiled"])
        if name == "plan":
            reached["arena"] = None if result["unplanned"] else sum(arena["size"] for arena in result["arenas"])
            reached |= {"optimal": result["optimal"], "optimal_over": result["optimal_over"]}
        reached |= _program_figures(result)
        # The verdict of a plan is of another kind: its run is equal bit for bit, or the step has failed.
        compared = {"verify": result, "plan": None}.get(name, result.get("verdict"))
        errors += [output.get("max_rel") for output in (compared or {}).get("outputs", ())]
        left |= (compared or {}).get("not_compared", {})
    if fused:
        reached["fused"] = fused.total()
        reached["fused_by"] = {name: count for name, count in sorted(fused.items()) if count}
    if already:
        reached["already"] = already
    if errors:
        reached["error"] = None if None in errors else max(errors)
    if left:
        reached["not_compared"] = left
    return reached


def _program_figures(result: Mapping[str, Any]) -> dict[str, int | None]:
    """Return the bytes of the program in C that a step `plan` or `fit` wrote; nothing where it wrote none."""
    if result.get("firmware") is None:
        return {}
    footprint = result["firmware"]["footprint"] or {}
    return {name: footprint.get(name) for name in ("ram", "flash")}


# Types of the fields of a pipeline file outside its steps.


def as_pydantic(read: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return what reads a value as `read` does, with its error as pydantic takes it."""

    def validated(value: Any) -> Any:
        try:
            return read(value)
        except Unreadable as error:
            raise ValueError(f"{value!r}: {error.reason}" + (f" ({error.hint})" if error.hint else "")) from None

    return validated


SizeField = Annotated[int, pydantic.BeforeValidator(as_pydantic(read_size))]
"""Bytes: a number, or text such as "256KiB"."""
CountField = Annotated[int, pydantic.BeforeValidator(as_pydantic(read_count))]


# Budgets: bounds on what a pipeline makes of a model, which turn it into a check.

_NEEDS = {
    "max_arena": {"plan"},
    "max_ram": {"fit", "plan"},
    "max_flash": {"fit", "plan"},
    "optimal": {"plan"},
    "min_fused": {"fuse"},
    "max_tiles": {"tile"},
    "max_nodes": {"fuse", "tile", "unfuse"},
    "max_error": {"fuse", "tile", "unfuse", "verify"},
}


@dataclass(frozen=True)
class Judged(JsonFields):
    """A budget, what it allows, what there is, and whether that is within; the `cause` of one that is not met, where that is known.

    `budget` is its key in the file, `limit` what it allows, `value` what there is, `met` whether that is within.
    """

    JSON = "budget limit value met cause?"

    budget: str
    limit: Any
    value: Any
    met: bool
    cause: str | None = None


class Budgets(pydantic.BaseModel):
    """The budgets of models: bytes of all arenas and of a program in C, fused sites by meta-op, tiles, nodes, the worst relative error,
    a proved plan."""

    model_config = pydantic.ConfigDict(extra="forbid", frozen=True, strict=True)

    max_arena: SizeField | None = None
    max_ram: SizeField | None = None
    max_flash: SizeField | None = None
    optimal: bool | Literal["any order"] | None = None
    min_fused: dict[str, CountField] = {}
    max_tiles: CountField | None = None
    max_nodes: CountField | None = None
    max_error: float | None = pydantic.Field(default=None, ge=0)

    def needs(self) -> dict[str, set[str]]:
        """Return the steps of which one must be there for each of the budgets that are given."""
        return {name: _NEEDS[name] for name in sorted(self.model_fields_set & _NEEDS.keys())}

    def judged(self, figures: Mapping[str, Any]) -> Iterator[Judged]:
        """Judge the `figures` of a model by each budget that is given."""
        for name in ("max_arena", "max_ram", "max_flash", "max_tiles", "max_nodes", "max_error"):
            limit, value = getattr(self, name), figures.get(name.removeprefix("max_"))
            if limit is not None:
                yield Judged(name, limit, value, value is not None and value <= limit)
        if self.optimal is not None:
            value = figures.get("optimal" if isinstance(self.optimal, bool) else "optimal_over")
            yield Judged("optimal", self.optimal, value, value == self.optimal)
        for meta_op, least in self.min_fused.items():
            count = figures.get("fused_by", {}).get(meta_op, 0)
            kept = figures.get("already", {}).get(meta_op, {}) if count < least else {}
            nodes = ", ".join(f"{number:,} {operator}" for operator, number in kept.items())
            cause = f"already one node: {nodes}" if nodes else None
            yield Judged(f"min_fused.{meta_op}", least, count, count >= least, cause)


class PipelineBudgets(Budgets):
    """The budgets of a pipeline: those of all models, and `models` with others for some, by a pattern of their file names."""

    models: dict[str, Budgets] = {}

    @property
    def tables(self) -> dict[tuple[str, ...], Budgets]:
        """All tables of budgets by their place in the file."""
        return {(): self, **{("models", pattern): budgets for pattern, budgets in self.models.items()}}

    def budgets_of(self, model: Path) -> Budgets:
        """Return the budgets of `model`: those of all, each replaced by that of the last pattern that matches and has it."""
        matching = [budgets for pattern, budgets in self.models.items() if fnmatchcase(model.name, pattern)]
        given = {name: getattr(table, name) for table in (self, *matching) for name in table.needs()}
        return Budgets.model_construct(set(given), **given)


# A baseline: the summary of an earlier run, with which the figures of each model are compared.

_LOWER = ("arena", "ram", "flash", "tiles", "nodes")
_HIGHER = ("fused",)
_HINT = "onnxtile run PIPELINE.toml IN ... --json FILE writes one"


@dataclass(frozen=True)
class Baseline:
    """The figures of an earlier run, by model."""

    figures: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def judged(self, model: Path, figures: Mapping[str, Any]) -> Iterator[Judged]:
        """Judge the `figures` of a model by those of the earlier run: nothing larger, no more tiles or nodes, no fewer fused sites.

        A plan that was proved the smallest has to be so again. A model, or a figure, that the earlier run lacks is not compared.
        """
        before = self._figures_of(model) or {}
        for name in (*_LOWER, *_HIGHER):
            if isinstance(before.get(name), int) and name in figures:
                value, limit = figures[name], before[name]
                met = value is not None and (value <= limit if name in _LOWER else value >= limit)
                yield Judged(f"baseline.{name}", limit, value, met)
        if before.get("optimal") is True and "optimal" in figures:
            yield Judged("baseline.optimal", True, figures["optimal"], figures["optimal"] is True)

    def require(self, models: Sequence[Path]) -> None:
        """Raise UsageError where the earlier run had none of `models`, so that nothing would be compared."""
        if self.figures and all(self._figures_of(model) is None for model in models):
            known = ", ".join(list(self.figures)[:3])
            raise UsageError("the baseline has none of the models", hint=f"it has {known}")

    def _figures_of(self, model: Path) -> Mapping[str, Any] | None:
        """Return the figures of a model: of the same path, or of the only one of the same name."""
        named = [path for path in self.figures if Path(path).name == model.name]
        return self.figures.get(str(model)) or (self.figures[named[0]] if len(named) == 1 else None)


def read_baseline(path: Path) -> Baseline:
    """Return the baseline in a file that `onnxtile run --json` wrote. Raises UsageError."""
    require_readable(path, UsageError, hint=_HINT)
    try:
        content = json.loads(path.read_bytes())
        return Baseline({str(Path(model["model"])): dict(model["figures"]) for model in content["models"]})
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror or error}") from None
    except (ValueError, KeyError, TypeError, RecursionError):
        raise UsageError(f"{path}: this is not the summary of a run", hint=_HINT) from None


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


# A step of a pipeline: a verb with its options, applied to the model as the steps before left it.

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

    def step_for(self, model: Path) -> PipelineStep:
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
        raise UsageError(f"{source.place((*at, alien))}: unknown key {alien!r}", hint=nearest(alien, sorted(fields)))
    try:
        settings = read_options(declaration, {**verb.operands(None, None), **given})
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


# Pipeline files: TOML, each step a command with its options, checked before any model is read.


REPORT = ".report.json"
"""The ending of the report beside each model."""


class PipelineFile(pydantic.BaseModel):
    """The content of a pipeline file."""

    model_config = pydantic.ConfigDict(extra="forbid", frozen=True)

    doc: str = ""
    models: list[str] = []
    output: str = ""
    steps: Annotated[list[dict[str, Any]], pydantic.Field(min_length=1)]
    budgets: PipelineBudgets = PipelineBudgets()
    runs: Annotated[RunChoice, pydantic.BeforeValidator(as_pydantic(read_limits))] = RunChoice()


@dataclass(frozen=True)
class Pipeline:
    """A pipeline: its name, its steps, its budgets, and the models that its file names.

    `output` is the name of the model it writes, in which {name} stands for that of the model it reads.
    """

    name: str
    steps: tuple[PipelineStep, ...]
    budgets: PipelineBudgets
    models: tuple[Path, ...]
    output: str
    limits: RunLimits = field(default_factory=RunLimits)
    baseline: Baseline = field(default_factory=Baseline)


def from_file(path: Path) -> Pipeline:
    """Return the pipeline in a TOML file. Raises UsageError with the file, the line and what is wrong there."""
    source = read(path, UsageError)
    if "limits" in source.content:
        raise UsageError(f"{source.place(('limits',))}: a pipeline has no limits", hint='write runs = "60s,4GiB"')
    file = source.validated(PipelineFile)
    steps = tuple(step_at(source, ("steps", i), step) for i, step in enumerate(file.steps))
    _require_files_apart(source, steps)
    for table, budgets in file.budgets.tables.items():
        _require_steps(source, ("budgets", *table), budgets, steps)
    output = file.output or f"{{name}}.{path.stem}.onnx"
    if "{name}" not in output or not is_file_name(output) or not output.endswith(".onnx"):
        raise UsageError(f"{source.place(('output',))}: the output is a file's name such as '{{name}}.deployed.onnx'")
    models = tuple(model for pattern in file.models for model in _models_named(source, pattern))
    tables: list[Location] = [("budgets", "models", pattern) for pattern in file.budgets.models]
    tables += [("steps", i, MODELS, pattern) for i, step in enumerate(steps) for pattern in step.by_model]
    for place in tables if models else ():
        pattern = str(place[-1])
        if not any(fnmatchcase(model.name, pattern) for model in models):
            where = source.place(place)
            raise UsageError(
                f"{where}: {pattern!r} matches none of the models of this file", hint="give names of files"
            )
    limits = RunLimits(file.runs.seconds, file.runs.memory)
    return Pipeline(path.stem, steps, file.budgets, models, output, limits)


def _require_steps(source: TomlFile, table: tuple[str, ...], budgets: Budgets, steps: Sequence[PipelineStep]) -> None:
    """Raise UsageError where one of `budgets`, those of `table`, needs a step or a meta-op that the pipeline lacks."""
    for name, needed in budgets.needs().items():
        if not needed & {step.name for step in steps}:
            where = source.place((*table, name))
            raise UsageError(f"{where}: the budget {name!r} needs a step {' or '.join(sorted(needed))}")
    _require_meta_ops(source, table, budgets, steps)
    _require_program(source, table, budgets, steps)


def _require_program(source: TomlFile, table: tuple[str, ...], budgets: Budgets, steps: Sequence[PipelineStep]) -> None:
    """Raise UsageError where a budget is about a program in C, and no step writes one."""
    if any(step.name in {"fit", "plan"} and step.options.wants_c for step in steps):
        return
    for name in ("max_ram", "max_flash"):
        if getattr(budgets, name) is not None:
            where = source.place((*table, name))
            raise UsageError(
                f"{where}: the budget {name!r} needs a step fit or plan that writes C", hint='add emit = ["c"] to it'
            )


def _require_meta_ops(
    source: TomlFile, table: tuple[str, ...], budgets: Budgets, steps: Sequence[PipelineStep]
) -> None:
    """Raise UsageError where `min_fused` names a meta-op that no step makes."""
    if not budgets.min_fused:
        return
    from onnxtile.fusion.pattern import chosen_patterns

    fusing = [step for step in steps if step.name == "fuse"]
    given = [step.options.patterns for step in fusing]
    given += [table["patterns"] for step in fusing for table in step.by_model.values() if "patterns" in table]
    meta_ops = [pattern.name for names in given for pattern in chosen_patterns(names)]
    for name in budgets.min_fused:
        if name not in meta_ops:
            where = source.place((*table, "min_fused", name))
            raise UsageError(f"{where}: no step fuses {name!r}", hint=nearest(name, sorted(meta_ops)))


def _require_files_apart(source: TomlFile, steps: Sequence[PipelineStep]) -> None:
    """Raise UsageError where two steps write the same file, or one writes the report's."""
    written = {REPORT}
    for i, step in enumerate(steps):
        for ending in step.written:
            if ending in written:
                where = source.place(("steps", i, "emit"))
                name = f"{step.name}{i + 1}.{ending.rpartition('.')[2]}"
                raise UsageError(
                    f"{where}: {_writer(ending)} writes {ending} already", hint=f'name it yourself: emit = ["{name}"]'
                )
            written.add(ending)


def _writer(ending: str) -> str:
    return "the run" if ending == REPORT else "a step before"


def _models_named(source: TomlFile, pattern: str) -> list[Path]:
    """Return the models that a name, or a pattern as a shell has it, stands for, from the folder of the pipeline file."""
    try:
        models = sorted(source.path.parent.glob(pattern)) if not Path(pattern).is_absolute() else [Path(pattern)]
    except (ValueError, IndexError, OSError):  # what a glob says of an empty pattern, and of others that are none
        models = []
    if not models:
        raise UsageError(f"{source.place(('models',))}: {pattern!r} names no file")
    return models


# Chooses the files of a run, and refuses two models with one output.


@dataclass(frozen=True)
class Destination:
    """Where files go: a folder (None: beside each model), whether what is there may be replaced, whether anything is written.

    With a `root`, models keep in the folder the folders that they have below it.
    """

    folder: Path | None = None
    force: bool = False
    dry_run: bool = False
    root: Path | None = None

    def files(self, pipeline: Pipeline, source: Path) -> tuple[Path, ...]:
        """Return all files that `pipeline` makes of the model `source`: a model, its report, and those that steps emit."""
        model = self.model(pipeline, source)
        endings = [ending for step in pipeline.steps for ending in step.written]
        return (model, *(model.with_suffix(ending) for ending in (REPORT, *endings)))

    def model(self, pipeline: Pipeline, source: Path) -> Path:
        """Return the file that `pipeline` makes of the model `source`."""
        name = pipeline.output.replace("{name}", source.stem)
        if self.folder is None:
            return source.parent / name
        below = Path() if self.root is None else _folder_of(source).relative_to(self.root)
        return self.folder / below / name


def apart(
    destination: Destination, pipeline: Pipeline, models: Sequence[Path], reserved: Iterable[Path] = ()
) -> Destination:
    """Return `destination` such that no two of `models` are written to one file.

    Models of one name from several folders keep these folders. Raises UsageError where that does not help, and where a file is written over
    another model that is to be read, over a file that a step reads, or over one that is `reserved`.
    """
    if destination.folder is not None and _clash(destination, pipeline, models) is not None:
        destination = replace(destination, root=Path(os.path.commonpath([_folder_of(model) for model in models])))
    clash = _clash(destination, pipeline, models)
    if clash is not None:
        raise UsageError(f"{clash[0]} and {clash[1]} would be written to one file", hint="rename one of them")
    sources = {real(model): model for model in models}
    taken = {real(file): file for file in (*reserved, *_read_by_steps(pipeline))}
    written = [(source, file) for source in models for file in destination.files(pipeline, source)]
    for source, file in written:
        other = sources.get(real(file))
        if other is not None and other != source:
            raise UsageError(
                f"{other} is to be read, and is what {source} would be written to",
                hint="leave it out, or write to another folder with -o",
            )
        if real(file) in taken:
            raise UsageError(
                f"{taken[real(file)]} has another use, and is what {source} would be written to",
                hint="name another file, or write to another folder with -o",
            )
    return destination


def _read_by_steps(pipeline: Pipeline) -> list[Path]:
    given = (table for step in pipeline.steps for table in (vars(step.options), *step.by_model.values()))
    return [value for table in given for value in table.values() if isinstance(value, Path)]


def make_folders(destination: Destination, pipeline: Pipeline, models: Sequence[Path]) -> None:
    """Make the folders that the files go to. Raises UsageError."""
    if destination.folder is None or destination.dry_run:
        return
    for folder in {destination.model(pipeline, model).parent for model in models}:
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UsageError(f"{folder}: {error.strerror}", hint="-o names a folder") from None


def _clash(destination: Destination, pipeline: Pipeline, models: Sequence[Path]) -> tuple[Path, Path] | None:
    targets: dict[Path, int] = {}
    for position, model in enumerate(models):
        for file in destination.files(pipeline, model):
            other = targets.setdefault(real(file), position)
            if other != position:
                return models[other], model
    return None


def _folder_of(model: Path) -> Path:
    return real(model).parent


# Files of an earlier run, which must not be taken for those of this one.


def remove_stale(files: Sequence[Path], source: Path) -> None:
    """Remove those of `files` that an earlier run wrote for the model `source`: its report, the second of `files`, says which.

    Weights that lie in a file beside a removed model go with it.
    """
    target, report, *_ = files
    written = {real(path) for path in _files_in_report(report)}
    for path in (target, *files[2:]):
        if real(path) in written and real(path) != real(source):
            path.unlink(missing_ok=True)
            for weights in path.parent.glob(f"{path.name}.data*") if path == target else ():
                weights.unlink(missing_ok=True)


def _files_in_report(report: Path) -> list[Path]:
    """Return the files that a report says were written; none where it cannot be read."""
    with suppress(OSError, ValueError, KeyError, TypeError, RecursionError):
        return [Path(name) for name in json.loads(report.read_bytes())["written"]]
    return []
