"""Modules that are loaded at their first use."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from threading import RLock
from types import ModuleType
from typing import Any


class DeferredFinder(MetaPathFinder):
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
        if not self.execute():
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
