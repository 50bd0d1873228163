"""Plans to show: of a real model, of a bare problem, with two arenas and odd names, and one as large as wanted."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from onnxtile import api

Plan = dict[str, Any]


def bare(rows: list[dict[str, Any]], **more: Any) -> Plan:
    """Return a plan of `rows`, with no model behind it."""
    size = max((row["offset"] + row["size"] for row in rows), default=0)
    arenas = [{"name": "arena", "capacity": None, "size": size}]
    peak = {"peak": size, "peak_step": 0, "lower_bound": size, "optimal": True}
    empty: Plan = {"schedule": [], "constants": [], "outside": [], "unplanned": []}
    return {"alignment": 1, "arenas": arenas, "buffers": rows, **peak, **empty, **more}


def row(name: str, offset: int, size: int, first: int, last: int, **more: Any) -> dict[str, Any]:
    plain = {"name": name, "arena": "arena", "offset": offset, "size": size, "first": first, "last": last}
    return {**plain, "kind": "activation", "alias": None, **more}


def stacked(count: int, depth: int = 40) -> Plan:
    """Return a plan of `count` buffers, `depth` of them live at most steps, with names as exporters write them."""
    random.seed(count)
    rows, tops = [], [0] * depth
    for i in range(count):
        slot = i % depth
        first = max(tops[slot], i // 2)
        last = first + random.randint(1, depth)
        tops[slot] = last + 1
        name = f"/model/layers.{i // 12}/attn/{i}_output_0"
        kind = "output" if i > count - 3 else "activation"
        rows.append(row(name, slot * 4096, random.randint(512, 4096), first, last, kind=kind, node=f"node_{i}"))
    return bare(rows, alignment=64, schedule=[f"node_{i}" for i in range(max(tops))])


@pytest.fixture(name="plan", scope="session")
def _plan(transformer: Path) -> Plan:
    return api.plan(transformer, verify=False).plan.to_dict()


@pytest.fixture(scope="session")
def problem() -> Plan:
    """Return what a bare problem has: no schedule, no nodes, no shapes."""
    return bare([row("b1", 0, 64, 0, 9), row("b2", 64, 32, 2, 4), row("b3", 64, 16, 5, 9)])


@pytest.fixture(scope="session")
def odd() -> Plan:
    """Return a plan with two arenas, names that no language likes, a kind of its own, an empty tensor, and more than 4 GiB."""
    names = ["a/b", "a_b", "a_b_1", "*/ int x; /*", "9", "é", "", "</script><b>&amp;", "int", "x" * 200, "y\\", "??/"]
    rows = [row(name, i * 64, 60, i, i + 2, arena=("sram", "dram")[i % 2], node="n\n") for i, name in enumerate(names)]
    rows += [row("view", 4, 8, 0, 1, arena="sram", alias="a/b", dtype="FLOAT", shape=[2])]
    rows += [row("none", 0, 0, 3, 3, arena="dram", kind="workspace", shape=[0, 4], dtype="INT64")]
    rows += [row("huge", 1 << 33, 1 << 32, 0, 1, arena="dram")]
    arenas = [
        {"name": "sram", "capacity": 1024, "size": 1024},
        {"name": "dram", "capacity": None, "size": (1 << 33) + (1 << 32)},
    ]
    return bare(rows, arenas=arenas, alignment=4, unplanned=[{"name": "u*/", "reason": "why?"}])
