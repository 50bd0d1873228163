"""Every field of a public result is named in the docstring of its class, or of a class that it extends."""

from __future__ import annotations

import inspect
import re
from dataclasses import fields, is_dataclass

import pytest

import onnxtile

PUBLIC = [
    value for name in onnxtile.__all__ if inspect.isclass(value := getattr(onnxtile, name)) and is_dataclass(value)
]
RESULTS = ("FuseResult", "UnfuseResult", "TiledModel", "PlannedModel", "PlanResult", "FittedModel", "FitCurve")
OTHERS = ("Inspection", "Trace", "MatchResult", "Verdict", "Explanation", "Audit", "RunResult")


def named(kind: type) -> set[str]:
    """Return the names in backticks in the docstrings of a class, and of the dataclasses that it extends."""
    docs = [one.__doc__ or "" for one in kind.__mro__ if is_dataclass(one)]
    return set(re.findall(r"`(\w+)`", "\n".join(docs)))


def test_the_results_of_all_verbs_are_public() -> None:
    assert {*RESULTS, *OTHERS} <= {kind.__name__ for kind in PUBLIC}


@pytest.mark.parametrize("kind", PUBLIC, ids=lambda kind: kind.__name__)
def test_each_field_is_in_the_docstring(kind: type) -> None:
    public = {one.name for one in fields(kind) if not one.name.startswith("_")}
    assert not public - named(kind)
