"""The few numbers of each step that a summary shows and budgets bound."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any


def figures(results: Iterable[tuple[str, Mapping[str, Any]]]) -> dict[str, Any]:
    """Return the figures of a model from the results of its steps, each with the step's name: a later step's count.

    `arena` is the bytes of all arenas (None where a tensor is unplanned); `error` the worst relative error of all steps that compared
    (None where that has no bound); `not_compared` the outputs that a step could not compare, by name with the reason.
    """
    found: dict[str, Any] = {}
    fused: Counter[str] = Counter()
    errors = []
    left: dict[str, str] = {}
    for name, result in results:
        if name == "fuse":
            fused.update({pattern["name"]: pattern["fused"] for pattern in result["patterns"]})
        if "nodes_after" in result:
            found["nodes"] = result["nodes_after"]
        if name == "tile":
            found["tiles"] = sum(layer["matmuls"] for layer in result["tiled"])
        if name == "plan":
            found["arena"] = None if result["unplanned"] else sum(arena["size"] for arena in result["arenas"])
            found |= {"optimal": result["optimal"], "optimal_over": result["optimal_over"]}
        # The verdict of a plan is of another kind: its run is equal bit for bit, or the step has failed.
        compared = {"verify": result, "plan": None}.get(name, result.get("verdict"))
        errors += [output.get("max_rel") for output in (compared or {}).get("outputs", ())]
        left |= (compared or {}).get("not_compared", {})
    if fused:
        found["fused"] = fused.total()
        found["fused_by"] = {name: count for name, count in sorted(fused.items()) if count}
    if errors:
        found["error"] = None if None in errors else max(errors)
    if left:
        found["not_compared"] = left
    return found
