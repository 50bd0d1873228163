"""Files to write a plan to: the format of each, and a check of the options before anything is planned."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from onnxtile.errors import NAME_ONLY, UsageError, invalid
from onnxtile.report.format import COLOR_BY, Format, PlanJson, RenderOptions, format_of


@dataclass(frozen=True)
class Emission:
    """The files that a plan is to be written to, each with its format, and how pictures are drawn."""

    files: Mapping[Path, Format]
    names: bool | None
    before: PlanJson | None
    color_by: str | None = None

    @classmethod
    def of(
        cls, paths: Iterable[Path], names: bool | None = None, compare: Path | None = None, color_by: str | None = None
    ) -> Emission:
        """Return the emission to `paths`. `compare` is the JSON file of a plan to draw beside this one. Raises UsageError."""
        files = {path: format_of(path) for path in paths}
        for form in files.values():
            form.require()
        if color_by is not None and color_by not in COLOR_BY:
            raise invalid("color_by", color_by, COLOR_BY)
        given = {"compare": compare, "names": names, "color_by": color_by}
        asked = next((option for option, value in given.items() if value is not None), None)
        if asked is not None and not any(form.picture for form in files.values()):
            message, hint = (
                f"{{{asked}}} is about pictures, and {{emit}} names none",
                "add {emit} plan.html, .svg or .png",
            )
            raise UsageError(message, hint=hint, given={asked: NAME_ONLY, "emit": NAME_ONLY})
        return cls(files, names, None if compare is None else _read(compare), color_by)

    def content(self, plan: PlanJson) -> dict[Path, bytes]:
        """Return the content of each file."""
        return {
            path: form.render(plan, RenderOptions(form.title(path), self.names, self.before, self.color_by))
            for path, form in self.files.items()
        }


def _read(path: Path) -> PlanJson:
    from onnxtile.report.plan_file import read_plan  # pydantic takes long to load

    return read_plan(path)
