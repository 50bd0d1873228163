"""The tensors of a plan that are pinned, placed or kept."""

from __future__ import annotations

from onnxtile.report.format import PlanJson


def fixed_rules(plan: PlanJson) -> dict[str, str]:
    """Return by name of the tensor: "pinned", "placed", "kept", or several of these.

    >>> fixed_rules({"pins": {"x": 0}, "keeps": ["x", "y"]})
    {'x': 'pinned, kept', 'y': 'kept'}
    """
    found: dict[str, list[str]] = {}
    for title, key in (("pinned", "pins"), ("placed", "places"), ("kept", "keeps")):
        for name in plan.get(key) or ():
            found.setdefault(name, []).append(title)
    return {name: ", ".join(titles) for name, titles in found.items()}
