"""What onnxtile uses of onnx-ir and onnx-shape-inference beside what they publish. No other module imports a private name of a library.

A new minor version of these libraries may change such names: pyproject.toml allows none that has not been tried. Private names of
onnxruntime are in `onnxtile.system.runtime`, the only module that imports it.
"""

from __future__ import annotations

import logging
from functools import cache
from types import ModuleType

from onnx_ir._cloner import Cloner

from onnxtile.system.modules import PackageCopy

__all__ = ["Cloner", "shape_engine"]

_ENGINE = "onnx_shape_inference"
_WITH_SYMPY = (f"{_ENGINE}._symbolic_shapes", f"{_ENGINE}._constraints")
"""Modules that are there for expressions of symbols, which most models do not have: importing sympy takes 0.3 s."""


@cache
def shape_engine() -> ModuleType:
    """Return a copy of onnx-shape-inference of onnxtile's own, with all its rules registered, that logs nothing.

    Its rules may be replaced: whoever else uses the library has the rules that it came with.
    """
    logging.getLogger(f"onnxtile.{_ENGINE}").setLevel(logging.CRITICAL)
    engine = PackageCopy(_ENGINE, "onnxtile", _WITH_SYMPY).module(_ENGINE)
    engine.registry.collect()
    return engine
