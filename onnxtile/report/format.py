"""Files in which a plan can be written; the ending of the file's name says which."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeAlias

from onnxtile.errors import UsageError
from onnxtile.registry import discover

PlanJson: TypeAlias = Mapping[str, Any]
"""A plan as docs/plan.schema.json describes it."""


class PlanDocument(dict[str, Any]):
    """A plan as JSON that was just made of a model: `constants` returns the bytes of the block of constants.

    `certificate` returns the certificate of the plan.
    """

    def __init__(
        self, plan: PlanJson, constants: Callable[[], bytes], certificate: Callable[[], PlanJson] | None = None
    ) -> None:
        super().__init__(plan)
        self.constants = constants
        self.certificate = certificate


COLOR_BY = ("operator", "layer", "kind")
"""Properties by which pictures can colour tensors."""


@dataclass(frozen=True)
class RenderOptions:
    """How a plan is written: `title` heads a picture and is the prefix in a C header, the others are for pictures.

    `names` says whether tensors are named (None: where a name fits); `before` is another plan that is drawn beside this one, at the
    same scale. `color_by` is what tensors are coloured by, one of COLOR_BY; None, or one that the plan does not tell, is the first of these
    that it does.
    """

    title: str = "plan"
    names: bool | None = None
    before: PlanJson | None = None
    color_by: str | None = None


@dataclass(frozen=True)
class Format:
    """One format: its name, the ending that asks for it, how a plan is written in it, a sentence about it, and whether it is a picture."""

    name: str
    suffix: str
    write: Callable[[PlanJson, RenderOptions], bytes]
    summary: str = ""
    picture: bool = False
    needs: str = ""
    """A package that this format alone needs, of the extra "pictures"."""

    def require(self) -> None:
        """Raise UsageError where the package that this format needs is not installed."""
        if self.needs and find_spec(self.needs) is None:
            raise UsageError(f"a {self.suffix} needs {self.needs}", hint="pip install 'onnxtile[pictures]'")

    def render(self, plan: PlanJson, options: RenderOptions | None = None) -> bytes:
        """Return the file's content, the same for the same plan and options. Raises UsageError where this format cannot hold the plan."""
        return self.write(plan, options or RenderOptions())

    def title(self, path: Path) -> str:
        """Return the name of the file `path` without the ending."""
        return path.name.removesuffix(self.suffix) or RenderOptions.title


def endings() -> list[str]:
    """Return the endings of all formats."""
    return sorted(form.suffix for form in discover("onnxtile.report.formats", Format).values())


def format_of(path: Path) -> Format:
    """Return the format that the name of `path` asks for: the longest ending that fits. Raises UsageError."""
    formats = discover("onnxtile.report.formats", Format).values()
    fitting = [form for form in formats if path.name.endswith(form.suffix)]
    if fitting:
        return max(fitting, key=lambda form: len(form.suffix))
    endings = ", ".join(sorted(form.suffix for form in formats))
    raise UsageError(f"{path}: no format has this ending", hint=f"the endings are {endings}")
