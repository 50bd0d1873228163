"""Chooses the files of a run, and refuses two models with one output."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from onnxtile.errors import UsageError
from onnxtile.paths import real
from onnxtile.pipeline.file import REPORT, Pipeline


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
        endings = [ending for step in pipeline.steps for ending in step.emitted]
        return (model, *(model.with_suffix(ending) for ending in (REPORT, *endings)))

    def model(self, pipeline: Pipeline, source: Path) -> Path:
        """Return the file that `pipeline` makes of the model `source`."""
        name = pipeline.output.replace("{name}", source.stem)
        if self.folder is None:
            return source.parent / name
        below = Path() if self.root is None else _folder_of(source).relative_to(self.root)
        return self.folder / below / name


def apart(place: Destination, pipeline: Pipeline, models: Sequence[Path], reserved: Iterable[Path] = ()) -> Destination:
    """Return `place` such that each of `models` is written to files of its own.

    Models of one name from several folders keep these folders. Raises UsageError where that does not help, and where a file is written over
    another model that is to be read, over a file that a step reads, or over one that is `reserved`.
    """
    if place.folder is not None and _clash(place, pipeline, models) is not None:
        place = replace(place, root=Path(os.path.commonpath([_folder_of(model) for model in models])))
    clash = _clash(place, pipeline, models)
    if clash is not None:
        raise UsageError(f"{clash[0]} and {clash[1]} would be written to one file", hint="rename one of them")
    sources = {real(model): model for model in models}
    taken = {real(file): file for file in (*reserved, *_read_by_steps(pipeline))}
    written = [(source, file) for source in models for file in place.files(pipeline, source)]
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
    return place


def _read_by_steps(pipeline: Pipeline) -> list[Path]:
    return [value for step in pipeline.steps for value in vars(step.options).values() if isinstance(value, Path)]


def make_folders(place: Destination, pipeline: Pipeline, models: Sequence[Path]) -> None:
    """Make the folders that the files go to. Raises UsageError."""
    if place.folder is None or place.dry_run:
        return
    for folder in {place.model(pipeline, model).parent for model in models}:
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UsageError(f"{folder}: {error.strerror}", hint="-o names a folder") from None


def _clash(place: Destination, pipeline: Pipeline, models: Sequence[Path]) -> tuple[Path, Path] | None:
    targets: dict[Path, int] = {}
    for position, model in enumerate(models):
        for file in place.files(pipeline, model):
            other = targets.setdefault(real(file), position)
            if other != position:
                return models[other], model
    return None


def _folder_of(model: Path) -> Path:
    return real(model).parent
