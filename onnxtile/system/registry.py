"""Plug-ins and data files are found by their existence: no list elsewhere is edited when one is added; modules are loaded late.

The plug-ins of onnxtile are objects in the modules of a package, or in one module. Other distributions add theirs by entry points, in the
group that has the same name: planners of others are in the group "onnxtile.planners".
(https://packaging.python.org/en/latest/specifications/entry-points/)
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import pkgutil
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from threading import RLock
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeVar

from onnxtile.system.dataclass import dataclass
from onnxtile.system.errors import OnnxtileError

if TYPE_CHECKING:
    from importlib.abc import Loader
    from importlib.metadata import EntryPoint
else:
    Loader = object  # importlib.abc would load thirty modules

T = TypeVar("T")


def discover(package: str, *kinds: type[T]) -> dict[str, T]:
    """Return every instance of `kinds` that a module of `package` defines at its top level, keyed by its `name`, sorted.

    `package` is the dotted name of a folder or of one module, such as "onnxtile.planning.planners". Those of other distributions count,
    too: each entry point of the group names an instance, or a module that defines some. Raises OnnxtileError where two plug-ins share a
    name, or one cannot be loaded.
    """
    plugins: dict[str, T] = {}
    sources: dict[str, str] = {}
    for source, plug_in in (*_own(package, kinds), *_contributed(package, kinds)):
        name: str = plug_in.name  # type: ignore[attr-defined]
        if plugins.setdefault(name, plug_in) is not plug_in:
            where = " and ".join(dict.fromkeys((sources[name], source)))
            raise OnnxtileError(f"two plug-ins in {where} are named {name!r}")
        sources.setdefault(name, source)
    return dict(sorted(plugins.items()))


def named(package: str, name: str, kind: type[T]) -> T | None:
    """Return the plug-in `name` that the module of that name in `package` defines; None where only `discover` can tell.

    The other modules are not loaded. Where other distributions add plug-ins, one of them may have the same name.
    """
    is_own = name.isidentifier() and importlib.util.find_spec(f"{package}.{name}") is not None
    if not is_own or contributions(_group(package)):
        return None
    module = importlib.import_module(f"{package}.{name}")
    values = (value for value in vars(module).values() if isinstance(value, kind))
    return next((value for value in values if value.name == name), None)  # type: ignore[attr-defined]


def _group(package: str) -> str:
    """Return the group of entry points that adds to `package`."""
    return f"onnxtile.{package.rpartition('.')[2]}"


def _own(package: str, kinds: tuple[type[T], ...]) -> Iterator[tuple[str, T]]:
    """Yield the instances that the modules of `package` define, or `package` itself where it is one module."""
    home = importlib.import_module(package)
    names = [f"{package}.{info.name}" for info in pkgutil.iter_modules(getattr(home, "__path__", ()))]
    for module in map(importlib.import_module, names) if names else [home]:
        yield from ((package, value) for value in vars(module).values() if isinstance(value, kinds))


def _contributed(package: str, kinds: tuple[type[T], ...]) -> Iterator[tuple[str, T]]:
    """Yield the instances that other distributions define. Raises OnnxtileError."""
    for contribution in contributions(_group(package)):
        loaded = contribution.load()
        values = vars(loaded).values() if isinstance(loaded, ModuleType) else [loaded]
        instances = [value for value in values if isinstance(value, kinds)]
        if not instances:
            expected = " or ".join(kind.__name__ for kind in kinds)
            raise contribution.error(f"{contribution.value!r} defines no {expected}")
        yield from ((contribution.distribution, value) for value in instances)


@dataclass(frozen=True)
class Contribution:
    """An entry point of another distribution: its name, its group, the module or object that it names, and who brings it."""

    group: str
    name: str
    value: str
    distribution: str
    entry_point: EntryPoint

    def load(self) -> Any:
        """Import what the entry point names. Raises OnnxtileError with the reason, whatever goes wrong in the code of others."""
        try:
            return self.entry_point.load()
        except Exception as error:
            reason = " ".join(str(error).split()) or "no reason given"
            raise self.error(f"{type(error).__name__}: {reason}") from error

    def error(self, reason: str) -> OnnxtileError:
        """Return the error of an entry point that does not do."""
        return OnnxtileError(
            f"the plug-in {self.name!r} of {self.distribution} (group {self.group}) cannot be used: {reason}",
            hint=f"update {self.distribution}, or uninstall it",
        )


def contributions(group: str) -> tuple[Contribution, ...]:
    """Return the entry points of other distributions in `group`, sorted by their names. Nothing is imported."""
    return _contributions(group, tuple(sys.path))


@cache
def _contributions(group: str, path: tuple[str, ...]) -> tuple[Contribution, ...]:
    known = _entry_points(path)
    points = sorted(known.select(group=group), key=lambda point: (point.name, point.value)) if known else []
    owners = (point.dist.name if point.dist is not None else "an unknown distribution" for point in points)
    return tuple(
        Contribution(group, point.name, point.value, owner, point) for point, owner in zip(points, owners, strict=True)
    )


@cache
def _entry_points(path: tuple[str, ...]) -> Any:
    """Return the entry points of every distribution on the path; None where no file of theirs has a group of onnxtile.

    The standard library's reader takes a sixth of the time of `--help`, most of it to be loaded.
    """
    finds_others = any(hasattr(finder, "find_distributions") for finder in sys.meta_path if finder is not PathFinder)
    if not finds_others and not any(map(_may_contribute, path)):
        return None
    from importlib.metadata import entry_points

    return entry_points()


def _may_contribute(folder: str) -> bool:
    """Return whether a distribution in `folder`, an entry of the path, may have entry points for onnxtile."""
    try:
        with os.scandir(folder or ".") as entries:
            folders = [entry.path for entry in entries if entry.name.lower().endswith(("dist-info", "egg-info"))]
        files = [file for path in folders if (file := Path(path, "entry_points.txt")).is_file()]
        return any(b"[onnxtile." in file.read_bytes() for file in files)
    except OSError as error:  # an archive is not listed here
        return not isinstance(error, FileNotFoundError)


def contributed_folders(group: str) -> dict[str, Path]:
    """Return the folders of the packages that the entry points of `group` name, by the name of the entry point.

    Raises OnnxtileError where one cannot be imported, is not a package in a folder, or where two have the same name.
    """
    folders: dict[str, Path] = {}
    for contribution in contributions(group):
        module = contribution.load()
        places = [Path(folder) for folder in getattr(module, "__path__", ())]
        if not places or not places[0].is_dir():
            raise contribution.error(f"{contribution.value!r} is not a package with a folder")
        if folders.setdefault(contribution.name, places[0]) != places[0]:
            raise contribution.error(f"another plug-in has the name {contribution.name!r}")
    return folders


def imported(home: str) -> Any:
    """Return what `home` names: "module:name"."""
    module, _, name = home.partition(":")
    return getattr(importlib.import_module(module), name)


def late(home: str) -> Callable[..., Any]:
    """Return a function that calls the one that `home` names, "module:name"; the module is imported at the first call."""

    def call(*arguments: Any) -> Any:
        return imported(home)(*arguments)

    return call


@cache
def data_folder(name: str) -> Path:
    """Return the folder `name` ("patterns", "models") that ships with the package.

    In a wheel it lies inside the package, in a checkout (also an editable install) beside it.
    """
    package = Path(__file__).parent.parent
    for folder in (package / name, package.parent / name):
        if folder.is_dir():
            return folder
    raise OnnxtileError(f"the folder {name!r} that ships with onnxtile is missing", hint="install onnxtile again")


# Modules that are loaded at their first use.


class DeferredFinder:
    """Finds the modules `names`: an import of one returns a module that is executed when a missing attribute is first read.

    The standard library's LazyLoader executes a module at its second import already.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self._names = frozenset(names)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the spec of a module that waits; for any other module None, once the package around it is executed."""
        if fullname in self._names:
            spec = PathFinder.find_spec(fullname, path, target)
            if spec is not None and spec.loader is not None:
                spec.loader = _DeferringLoader(spec.loader)
            return spec
        package = sys.modules.get(fullname.partition(".")[0])
        wait = vars(package).get("__getattr__") if package is not None else None
        if isinstance(wait, _FirstUse) and wait.execute() and fullname in sys.modules:
            return ModuleSpec(fullname, _ExecutedModule(sys.modules[fullname]))
        return None


class _DeferringLoader(Loader):
    def __init__(self, loader: Loader) -> None:
        self._loader = loader

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        vars(module)["__getattr__"] = _FirstUse(module, self._loader)


class _ExecutedModule(Loader):
    def __init__(self, module: ModuleType) -> None:
        self._module = module

    def create_module(self, _: ModuleSpec) -> ModuleType:
        return self._module

    def exec_module(self, module: ModuleType) -> None:
        pass


class _FirstUse:
    """The `__getattr__` of a module that waits: executes the module, in one thread, and reads the attribute."""

    def __init__(self, module: ModuleType, loader: Loader) -> None:
        self._module = module
        self._loader = loader
        self._lock = RLock()
        self._is_started = False

    def __call__(self, name: str) -> Any:
        # `onnx_ir` asks each module that it offers for the module that defines it, which only a class or a function says.
        if name == "__module__" or not self.execute():
            raise AttributeError(f"module {self._module.__name__!r} has no attribute {name!r}")
        return getattr(self._module, name)

    def execute(self) -> bool:
        """Execute the module; return False where that is under way in this thread."""
        with self._lock:
            if vars(self._module).get("__getattr__") is not self:
                return True
            if self._is_started:
                return False
            self._is_started = True
            self._loader.exec_module(self._module)
            if vars(self._module).get("__getattr__") is self:
                del vars(self._module)["__getattr__"]
            return True


def defer(*names: str) -> None:
    """Let an import of each of the modules `names` that is not loaded yet return a module that is executed at its first use."""
    sys.meta_path.insert(0, DeferredFinder(names))


_DEFERRED = (
    *("sympy", "onnx_ir._symbolic_shapes", "pydantic", "google.protobuf.json_format", "google.protobuf.text_format"),
    *("google.protobuf.internal.python_message", "google.protobuf.text_encoding"),
    *("concurrent.futures", "csv", "hashlib", "pickle", "shutil", "tempfile", "traceback", "zipfile"),
    *("onnx.compose", "onnx.gen_proto", "onnx.parser", "onnx.printer", "onnx.utils", "onnx.version_converter"),
    *("onnx_ir.convenience", "onnx_ir.passes", "onnx_ir.schemas", "onnx_ir.tape", "onnx_ir.tensor_adapters"),
    *("onnx_ir.traversal", "packaging.version", "html", "locale", "socket", "subprocess"),
)
"""Modules that are executed at their first use: libraries import them, and few commands use one."""


def defer_libraries() -> None:
    """Let the modules that few commands use be executed at their first use in this process, which is to be a command or a worker."""
    defer(*_DEFERRED)
