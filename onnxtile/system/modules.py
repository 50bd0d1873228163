"""Modules that are loaded in other ways than by a plain import: at their first use, or as a copy of one's own."""

from __future__ import annotations

import builtins
import sys
from collections.abc import Collection, Mapping, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import find_spec, module_from_spec, resolve_name, spec_from_file_location
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


class PackageCopy:
    """A copy of an installed package of Python files, apart from the one that an import gives: what is changed in it, nobody else sees.

    Its modules import each other, and other packages as usual; nothing of it stands in sys.modules. They are named `prefix`, a dot, and
    their own name, which is that of their loggers, too. The modules `waiting` are executed when an attribute of them is first read.
    """

    def __init__(self, package: str, prefix: str, waiting: Collection[str] = ()) -> None:
        self._package = package
        self._prefix = prefix
        self._waiting = frozenset(waiting)
        self._modules: dict[str, ModuleType] = {}
        self._lock = RLock()
        self._builtins = {**vars(builtins), "__import__": self._imported}

    def module(self, name: str) -> ModuleType:
        """Return the copy of the module `name` of the package. Raises ModuleNotFoundError where the package has none."""
        with self._lock:
            return self._modules[name] if name in self._modules else self._loaded(name)

    def _loaded(self, name: str) -> ModuleType:
        parent, _, last = name.rpartition(".")
        around = self.module(parent) if parent else None
        located = find_spec(name) if around is None else PathFinder.find_spec(name, around.__path__)
        if located is None or located.origin is None:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        copy_name = f"{self._prefix}.{name}"
        spec = spec_from_file_location(
            copy_name, located.origin, submodule_search_locations=located.submodule_search_locations
        )
        assert spec is not None and spec.loader is not None
        module = module_from_spec(spec)
        vars(module)["__builtins__"] = self._builtins
        self._modules[name] = module
        if name in self._waiting:
            vars(module)["__getattr__"] = _FirstUse(module, spec.loader)
        else:
            self._execute(name, module, spec.loader)
        if around is not None:
            vars(around)[last] = module
        return module

    def _execute(self, name: str, module: ModuleType, loader: Loader) -> None:
        try:
            loader.exec_module(module)
        except BaseException:
            del self._modules[name]
            raise

    def _imported(
        self,
        name: str,
        names: Mapping[str, object] | None = None,
        inner: Mapping[str, object] | None = None,
        fromlist: Sequence[str] | None = (),
        level: int = 0,
    ) -> ModuleType:
        """Import as the statement does in a module of the copy, which `names` belong to."""
        if level:
            around = str((names or {}).get("__package__")).removeprefix(f"{self._prefix}.")
            name = resolve_name("." * level + name, around)
        if name.partition(".")[0] != self._package:
            return builtins.__import__(name, names, inner, fromlist or (), 0)
        module = self.module(name)
        if not fromlist:
            return self.module(self._package)
        for wanted in fromlist:
            if name not in self._waiting and not hasattr(module, wanted):
                self.module(f"{name}.{wanted}")
        return module
