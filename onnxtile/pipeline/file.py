"""Pipeline files: TOML, each step a command with its options, checked before any model is read."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import field, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, Any

import pydantic

from onnxtile.declare.values import RunChoice, read_limits
from onnxtile.pipeline.budgets import Baseline, Budgets, PipelineBudgets, as_pydantic
from onnxtile.pipeline.step import MODELS, PipelineStep, step_at
from onnxtile.system.dataclass import dataclass
from onnxtile.system.errors import UsageError, nearest
from onnxtile.system.files import is_file_name, real
from onnxtile.system.limits import RunLimits
from onnxtile.system.toml_file import Location, TomlFile, read

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
