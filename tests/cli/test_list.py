"""Every name that `list` shows is one that its option takes."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from onnxtile.verbs.list import KINDS, option_names


@pytest.mark.parametrize("kind", KINDS)
def test_each_name_stands_once_and_has_a_summary(run: Callable[..., Any], kind: str) -> None:
    listed = json.loads(run("list", kind, "--json", "-").out)
    names = [choice["name"] for choice in listed["names"]]
    assert names and len(set(names)) == len(names)
    assert all(choice["summary"].strip() for choice in listed["names"])
    shown = run("list", kind).out
    assert all(name in shown for name in names)


def test_the_names_are_those_of_the_plug_ins() -> None:
    from onnxtile.fusion.pattern import select
    from onnxtile.planning.planner import planners
    from onnxtile.planning.schedule import orders
    from onnxtile.tiling.limits import find

    assert {choice.name for choice in option_names("planners").names} == planners().keys()
    assert {choice.name for choice in option_names("orders").names} == orders().keys()
    for choice in option_names("patterns").names:
        assert select([choice.name])[0].doc == choice.summary
    for choice in option_names("targets").names:
        find(choice.name)


def test_an_unknown_kind_or_pattern_gets_the_nearest_name(run: Callable[..., Any], folder: Path) -> None:
    done = run("list", "plannrs")
    assert (done.code, done.err) == (2, "error: invalid kind 'plannrs' (did you mean 'planners'?)\n")
    assert (folder / "m.onnx").exists()
    done = run("fuse", "m.onnx", "-p", "layernrm")
    assert (done.code, done.err) == (2, "error: unknown pattern 'layernrm' (did you mean 'LayerNorm'?)\n")
