"""Files in which a plan can be written; the ending of the file's name says which."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from importlib import resources
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, TypeAlias

import pydantic

from onnxtile.declare.plan_document import Arena, PlannedBuffer, PlanRow, first_fault
from onnxtile.model.modules import ModulePath
from onnxtile.system.dataclass import dataclass
from onnxtile.system.errors import UsageError, about_options, of_extra
from onnxtile.system.files import require_readable
from onnxtile.system.registry import discover

PlanJson: TypeAlias = Mapping[str, Any]
"""A plan as docs/plan.schema.json describes it."""


class PlanExport(dict[str, Any]):
    """A plan as JSON that was just made of a model: `constants` returns the bytes of the block of constants.

    `certificate` returns the certificate of the plan, `firmware` the files of the program in C by their ending, from a title. `modules` has
    the modules around each node, by its name.
    """

    def __init__(
        self,
        plan: PlanJson,
        constants: Callable[[], bytes],
        certificate: Callable[[], PlanJson] | None = None,
        firmware: Callable[[str], Mapping[str, bytes]] | None = None,
        modules: Mapping[str, ModulePath] = MappingProxyType({}),
    ) -> None:
        super().__init__(plan)
        self.constants = constants
        self.certificate = certificate
        self.firmware = firmware
        self.modules = modules


@cache
def c_texts(package: str, name: str) -> dict[str, str]:
    """Return the texts in the file `name` of the folder c/ of `package`, by the word after the slashes in the line before each."""
    whole = (resources.files(package) / "c" / name).read_text(encoding="utf-8")
    _, *parts = re.split(r"^//// (\w+).*\n", whole, flags=re.MULTILINE)
    return dict(zip(parts[::2], parts[1::2], strict=True))


@dataclass(frozen=True)
class RenderOptions:
    """How a plan is written: `title` heads a picture and is the prefix in a C header, the others are for pictures.

    `names` says whether tensors are named (None: where a name fits); `before` is another plan that is drawn beside this one, at the
    same scale, or with `own_scales` each at its own. `color_by` is what tensors are coloured by: "operator", "layer" or "kind"; None, or
    one that the plan does not tell, is the first of these that it does.
    """

    title: str = "plan"
    names: bool | None = None
    before: PlanJson | None = None
    color_by: str | None = None
    own_scales: bool = False


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
    beside: tuple[str, ...] = ()
    """The endings of further files that may belong to the first."""
    write_beside: Callable[[PlanJson, RenderOptions], Mapping[str, bytes]] = lambda _plan, _options: {}
    """Returns the further files that there are, by their ending."""

    def paths_beside(self, path: Path) -> tuple[Path, ...]:
        """Return the further files that may belong to the file `path`."""
        return tuple(path.with_name(self.title(path) + ending) for ending in self.beside)

    def contents(self, plan: PlanJson, path: Path, options: RenderOptions) -> dict[Path, bytes]:
        """Return the content of the file `path`, and of those beside it. Raises UsageError where this format cannot hold the plan."""
        further = self.write_beside(plan, options)
        paths = zip(self.beside, self.paths_beside(path), strict=True)
        return {path: self.render(plan, options), **{other: further[end] for end, other in paths if end in further}}

    def require(self) -> None:
        """Raise UsageError where the package that this format needs is not installed."""
        if self.needs and find_spec(self.needs) is None:
            raise UsageError(f"a {self.suffix} needs {self.needs}", hint=f"{of_extra('pictures')}, or name an .svg")

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
    form = _format_or_none(path)
    if form is None:
        raise UsageError(f"{path}: no format has this ending", hint=f"the endings are {', '.join(endings())}")
    return form


def further_files(path: Path) -> dict[str, Path]:
    """Return the further files that may belong to `path`, by their endings; only a file of a plan has any."""
    form = _format_or_none(path)
    return {} if form is None else dict(zip(form.beside, form.paths_beside(path), strict=True))


def _format_or_none(path: Path) -> Format | None:
    formats = discover("onnxtile.report.formats", Format).values()
    fitting = [form for form in formats if path.name.endswith(form.suffix)]
    return max(fitting, key=lambda form: len(form.suffix), default=None)


# Files to write a plan to: the format of each, and a check of the options before anything is planned.


@dataclass(frozen=True)
class Emission:
    """The files that a plan is to be written to, each with its format, and how pictures are drawn: see RenderOptions."""

    files: Mapping[Path, Format]
    before: PlanJson | None
    own_scales: bool = False

    @classmethod
    def from_paths(cls, paths: Iterable[Path], compare: Path | None = None) -> Emission:
        """Return the emission to `paths`. `compare` is the JSON file of a plan to draw beside this one. Raises UsageError."""
        files = {path: format_of(path) for path in paths}
        for path, form in files.items():
            form.require()
            other = next((other for other in form.paths_beside(path) if other in files), None)
            if other is not None:
                raise UsageError(
                    f"{other} is written with {path}, and named as a file of its own too",
                    hint="leave one of the two out",
                )
        if compare is not None and not any(form.picture for form in files.values()):
            message = "{compare} is about pictures, and {emit} names none"
            raise about_options(message, hint="add {emit} plan.html, .svg or .png")
        return cls(files, None if compare is None else read_plan(compare))

    def content(self, plan: PlanJson) -> dict[Path, bytes]:
        """Return the content of each file."""
        files: dict[Path, bytes] = {}
        for path, form in self.files.items():
            options = RenderOptions(form.title(path), before=self.before, own_scales=self.own_scales)
            files |= form.contents(plan, path, options)
        return files


# A plan read back from its JSON, with a check of the fields that a picture needs. Any other field may be there.

_HINT = "write one by: onnxtile plan MODEL --emit before.json"

_LARGEST = 2**53
"""So far a page counts exactly."""


@dataclass(frozen=True, kw_only=True)
class _DrawnGraph:
    buffers: tuple[PlannedBuffer, ...]
    schedule: tuple[str, ...] | None = None
    steps: tuple[int, ...] | None = None
    operators: tuple[str, ...] | None = None
    constant_nodes: tuple[str, ...] | None = None
    bodies: tuple[_DrawnBody, ...] | None = None

    def faults(self, where: str = "") -> Iterator[str]:
        """Yield what no picture can show; `where` is the way to the graph."""
        nodes = self.schedule or ()
        for name, entries in (("steps", self.steps), ("operators", self.operators)):
            if entries is not None and len(entries) != len(nodes):
                yield f"{where}{name} and schedule have different lengths"
        if not all(0 <= step <= _LARGEST for step in self.steps or ()):
            yield f"{where}steps: no numbers from 0 to 2^53"
        for index, row in enumerate(self.buffers):
            yield from _too_large(row, ("offset", "size", "first", "last"), f"{where}buffers.{index}")
            for part in row.parts or ():
                yield from _too_large(part, ("start", "size", "first", "last"), f"{where}buffers.{index}.parts")
            if row.last < row.first:
                yield f"{where}buffers.{index}: the last step of its life is before the first"
        for index, body in enumerate(self.bodies or ()):
            if body.node not in nodes:
                yield f"{where}a body belongs to the node {body.node!r}, which is not in the schedule"
            yield from body.faults(f"{where}bodies.{index}.")


def _too_large(row: PlanRow, names: Iterable[str], where: str) -> Iterator[str]:
    for name in names:
        if not 0 <= (getattr(row, name) or 0) <= _LARGEST:
            yield f"{where}.{name}: no number from 0 to 2^53"


@dataclass(frozen=True, kw_only=True)
class _DrawnBody(_DrawnGraph):
    node: str
    attribute: str | None


@dataclass(frozen=True, kw_only=True)
class _DrawnPlan(_DrawnGraph):
    arenas: tuple[Arena, ...]
    alignment: Annotated[int, pydantic.Field(ge=1, le=_LARGEST)] | None = None

    def faults(self, where: str = "") -> Iterator[str]:
        """Yield what no picture can show of the graph, then of the arenas."""
        yield from super().faults(where)
        for index, arena in enumerate(self.arenas):
            yield from _too_large(arena, ("size", "capacity"), f"arenas.{index}")


def read_plan(path: Path) -> PlanJson:
    """Return the plan in the JSON file `path`. Raises UsageError with the first field that is wrong."""
    require_readable(path, UsageError, hint=_HINT)
    try:
        text = path.read_bytes()
        parsed: Any = json.loads(text)
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror or error}", hint=_HINT) from error
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path} is no JSON: {error}", hint=_HINT) from error
    try:
        drawn = pydantic.TypeAdapter(_DrawnPlan).validate_json(text, strict=True)
        fault = next(drawn.faults(), None)
    except pydantic.ValidationError as error:
        fault = first_fault(error)
    if fault is not None:
        raise UsageError(f"{path} is no plan: {fault}", hint=_HINT)
    plan: PlanJson = parsed
    return plan
