"""Pipeline files: TOML, each step a command with its options, checked before any model is read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import pydantic

from onnxtile.errors import UsageError, nearest
from onnxtile.paths import is_file_name
from onnxtile.pipeline.baseline import Baseline
from onnxtile.pipeline.budgets import Budgets
from onnxtile.pipeline.fields import SecondsField, SizeField
from onnxtile.pipeline.step import PipelineStep, step_at
from onnxtile.run_limits import RunLimits
from onnxtile.toml_file import TomlFile, read

REPORT = ".report.json"
"""The ending of the report beside each model."""


class RunLimitsTable(pydantic.BaseModel):
    """The table [limits]: what runs of the models may take."""

    model_config = pydantic.ConfigDict(extra="forbid", frozen=True, strict=True)

    run_seconds: SecondsField | None = None
    run_memory: SizeField | None = None


class PipelineFile(pydantic.BaseModel):
    """The content of a pipeline file."""

    model_config = pydantic.ConfigDict(extra="forbid", frozen=True)

    doc: str = ""
    models: list[str] = []
    output: str = ""
    steps: Annotated[list[dict[str, Any]], pydantic.Field(min_length=1)]
    budgets: Budgets = Budgets()
    limits: RunLimitsTable = RunLimitsTable()


@dataclass(frozen=True)
class Pipeline:
    """A pipeline: its name, its steps, its budgets, and the models that its file names.

    `output` is the name of the model it writes, in which {name} stands for that of the model it reads.
    """

    name: str
    steps: tuple[PipelineStep, ...]
    budgets: Budgets
    models: tuple[Path, ...]
    output: str
    limits: RunLimits = field(default_factory=RunLimits)
    baseline: Baseline = field(default_factory=Baseline)


def from_file(path: Path) -> Pipeline:
    """Return the pipeline in a TOML file. Raises UsageError with the file, the line and what is wrong there."""
    source = read(path, UsageError)
    file = source.validated(PipelineFile)
    steps = tuple(step_at(source, ("steps", i), step) for i, step in enumerate(file.steps))
    _require_files_apart(source, steps)
    for name, needed in file.budgets.needs().items():
        if not needed & {step.name for step in steps}:
            where = source.place(("budgets", name))
            raise UsageError(f"{where}: the budget {name!r} needs a step {' or '.join(sorted(needed))}")
    _require_meta_ops(source, file.budgets, steps)
    output = file.output or f"{{name}}.{path.stem}.onnx"
    if "{name}" not in output or not is_file_name(output) or not output.endswith(".onnx"):
        raise UsageError(f"{source.place(('output',))}: the output is a file's name such as '{{name}}.deployed.onnx'")
    models = tuple(found for pattern in file.models for found in _named(source, pattern))
    limits = RunLimits(file.limits.run_seconds, file.limits.run_memory)
    return Pipeline(path.stem, steps, file.budgets, models, output, limits)


def _require_meta_ops(source: TomlFile, budgets: Budgets, steps: Sequence[PipelineStep]) -> None:
    """Raise UsageError where `min_fused` names a meta-op that no step makes."""
    if not budgets.min_fused:
        return
    from onnxtile.api import chosen_patterns

    patterns = (chosen_patterns(step.options.patterns) for step in steps if step.name == "fuse")
    made = [pattern.name for chosen in patterns for pattern in chosen]
    for name in budgets.min_fused:
        if name not in made:
            where = source.place(("budgets", "min_fused", name))
            raise UsageError(f"{where}: no step fuses {name!r}", hint=nearest(name, sorted(made)))


def _require_files_apart(source: TomlFile, steps: Sequence[PipelineStep]) -> None:
    """Raise UsageError where two steps write the same file, or one writes the report's."""
    found = {REPORT}
    for i, step in enumerate(steps):
        for ending in step.emitted:
            if ending in found:
                where = source.place(("steps", i, "emit"))
                own = f"{step.name}{i + 1}.{ending.rpartition('.')[2]}"
                raise UsageError(
                    f"{where}: {_writer(ending)} writes {ending} already", hint=f'name it yourself: emit = ["{own}"]'
                )
            found.add(ending)


def _writer(ending: str) -> str:
    return "the run" if ending == REPORT else "a step before"


def _named(source: TomlFile, pattern: str) -> list[Path]:
    """Return the models that a name, or a pattern as a shell has it, stands for, from the folder of the pipeline file."""
    try:
        found = sorted(source.path.parent.glob(pattern)) if not Path(pattern).is_absolute() else [Path(pattern)]
    except (ValueError, IndexError, OSError):  # what a glob says of an empty pattern, and of others that are none
        found = []
    if not found:
        raise UsageError(f"{source.place(('models',))}: {pattern!r} names no file")
    return found
