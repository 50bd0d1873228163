"""Asks the properties of the model of a seed."""

from __future__ import annotations

import traceback
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.random_graphs.generator import OPSETS, random_model
from tests.random_graphs.option_properties import OPTION_PROPERTIES
from tests.random_graphs.plan_properties import PLAN_PROPERTIES
from tests.random_graphs.properties import PROPERTIES, Case

ALL = {**PROPERTIES, **PLAN_PROPERTIES, **OPTION_PROPERTIES}
Fault = tuple[int, str, str]
"""The seed, the property, and what was wrong."""


def faults(
    seed: int,
    only: str | None = None,
    *,
    everything: bool = False,
    most: int = 18,
    opsets: Sequence[int] = OPSETS,
    further: bool = False,
    drawing: bool = False,
) -> Iterator[Fault]:
    """Ask the model of `seed` the properties that the seed chooses, or `everything`; yield what is wrong."""
    made = random_model(seed, most, opsets, further=further, drawing=drawing)
    case = Case(made, verify=seed % 5 == 0)
    choice = case.random("properties")
    for name, (holds, often) in ALL.items():
        asked = choice.random() < often or everything
        if name == only or (only is None and asked):
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    holds(case)
            except Exception as error:  # noqa: BLE001 - whatever is raised is the finding
                last = traceback.extract_tb(error.__traceback__)[-1]
                where = f"{Path(last.filename).name}:{last.lineno}"
                yield seed, name, f"{type(error).__name__} at {where}: {' '.join(str(error).split())[:400]}"
