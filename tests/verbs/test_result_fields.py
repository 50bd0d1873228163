"""Every field of a public result, and of what its fields hold, is named in the docstring of its class or of a class that it extends."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import re
import sys
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from functools import cache
from typing import Any, get_args, get_type_hints

import pydantic

import onnxtile

PUBLIC = [
    value for name in onnxtile.__all__ if inspect.isclass(value := getattr(onnxtile, name)) and is_dataclass(value)
]
RESULTS = ("FuseResult", "UnfuseResult", "TiledModel", "PlannedModel", "PlanResult", "FittedModel", "FitCurve")
OTHERS = ("Inspection", "Trace", "MatchResult", "Verdict", "Explanation", "Audit", "RunResult")


@cache
def classes() -> dict[str, Any]:
    """Return all classes of the package by name, which modules import only where types are checked."""
    found: dict[str, Any] = {"pydantic": pydantic}
    for module in pkgutil.walk_packages(onnxtile.__path__, "onnxtile."):
        if not module.name.endswith("__main__"):
            names = vars(importlib.import_module(module.name))
            found |= {
                name: value
                for name, value in names.items()
                if inspect.isclass(value) and value.__module__ == module.name
            }
    return found


def parts(hint: Any) -> Iterator[Any]:
    """Yield a type and the types in it."""
    yield hint
    for part in get_args(hint):
        yield from parts(part)


def reachable() -> dict[type, None]:
    """Return the dataclasses that are exported, and those that their fields hold, and so on."""
    found: dict[type, None] = {}
    todo, ours = [*PUBLIC], {one.__module__ for one in classes().values() if inspect.isclass(one)}
    while todo:
        kind = todo.pop()
        if kind not in found:
            found[kind] = None
            known = {name for one in kind.__mro__ for name in vars(sys.modules[one.__module__])}
            hints = get_type_hints(kind, localns={name: one for name, one in classes().items() if name not in known})
            held = (hints[one.name] for one in fields(kind) if not one.name.startswith("_"))
            todo += [
                part
                for hint in held
                for part in parts(hint)
                if inspect.isclass(part) and is_dataclass(part) and part.__module__ in ours
            ]
    return found


def named(kind: type) -> set[str]:
    """Return the names in backticks in the docstrings of a class, and of the dataclasses that it extends."""
    docs = [one.__doc__ or "" for one in kind.__mro__ if is_dataclass(one)]
    return set(re.findall(r"`(\w+)`", "\n".join(docs)))


def test_the_results_of_all_verbs_are_public() -> None:
    assert {*RESULTS, *OTHERS} <= {kind.__name__ for kind in PUBLIC}


def test_each_field_is_in_the_docstring() -> None:
    kinds = reachable()
    assert len(kinds) > 120
    deepest = {"Footprint", "PlannedPart", "SizeFormula", "TransferTime", "WindowBounds"}
    assert deepest <= {kind.__name__ for kind in kinds}
    public = {kind: {one.name for one in fields(kind) if not one.name.startswith("_")} for kind in kinds}
    assert not {kind.__name__: missing for kind in kinds if (missing := public[kind] - named(kind))}
