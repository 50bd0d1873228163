"""Run as a module: prints what each verb changes in the libraries that onnxtile uses, and around them, for other code of the process."""

from __future__ import annotations

import gc
import json
import logging
import os
import sys
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import onnx
import onnxruntime  # noqa: F401 - so that it is looked at from the start

import onnxtile

LIBRARIES = ("numpy", "onnx", "onnx_ir", "onnxruntime", "sympy")
ASKED = {"ORT_DISABLE_TELEMETRY"}
"""Variables of the environment that a library reads when it is imported; docs/install.md says so."""


def attributes() -> dict[str, int]:
    """Return which object each attribute of the modules of the libraries is, and of their classes."""
    found: dict[str, int] = {}
    for name, module in list(sys.modules.items()):
        if module is None or not is_of_library(name):
            continue
        for key, value in list(vars(module).items()):
            # A module of a package that is imported later becomes an attribute of it.
            if isinstance(value, ModuleType) or key.startswith("__"):
                continue
            found[f"{name}.{key}"] = id(value)
            if isinstance(value, type) and is_of_library(value.__module__):
                own = {k: id(one) for k, one in vars(value).items() if not k.startswith("__")}
                found |= {f"{value.__module__}.{value.__qualname__}.{k}": number for k, number in own.items()}
    return found


def is_of_library(module: str) -> bool:
    return module.partition(".")[0] in LIBRARIES


def surroundings() -> dict[str, Any]:
    """Return what libraries hold in tables of their own, and what a process has once."""
    loggers = {name: one for name, one in logging.root.manager.loggerDict.items() if isinstance(one, logging.Logger)}
    return {
        "schemas": len(onnx.defs.get_all_schemas_with_history()),
        "environment": {key: text for key, text in os.environ.items() if key not in ASKED},
        "filters": str(warnings.filters),
        "errors of numpy": np.geterr(),
        "printing of numpy": str(np.get_printoptions()),
        "handlers": len(logging.root.handlers),
        "finders": [str(one) for one in sys.meta_path],
        "recursion": sys.getrecursionlimit(),
        "collector": [gc.isenabled(), gc.get_threshold()],
        "hooks": [str(one) for one in (sys.excepthook, sys.unraisablehook)],
        **{f"level of {name}": one.level for name, one in loggers.items() if is_of_library(name)},
    }


def changed(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """Return the names of `before` that mean something else in `after`."""
    return [name for name, value in before.items() if after.get(name) != value]


def main(path: Path) -> None:
    """Run each verb on the model at `path`, and print as JSON what it has changed."""
    model = onnx.load(path)
    fused = onnxtile.fuse(model).model
    runs: dict[str, Callable[[], object]] = {
        "inspect": lambda: onnxtile.inspect(model),
        "fuse": lambda: onnxtile.fuse(model, lower="onnx"),
        "unfuse": lambda: onnxtile.unfuse(fused),
        "match": lambda: onnxtile.match(model, "MatMul"),
        "tile": lambda: onnxtile.tile(model, max=64),
        "plan": lambda: onnxtile.plan(model),
        "fit": lambda: onnxtile.fit(model, capacity=10**9),
        "verify": lambda: onnxtile.verify(model, model),
    }
    found = {}
    for name, run in runs.items():
        before = attributes(), surroundings()
        with warnings.catch_warnings():
            run()
        found[name] = [*changed(before[0], attributes()), *changed(before[1], surroundings())]
    print(json.dumps(found))  # noqa: T201 - its caller reads it


if __name__ == "__main__":
    main(Path(sys.argv[1]))
