"""Resizing: each element of the output is a weighted sum of the points around it in each dimension that changes its size."""

from __future__ import annotations

from onnxtile.inspection.work import CountedNode, FlopRule, NotKnown

_POINTS = {"nearest": 1, "linear": 2, "bilinear": 2, "cubic": 4}


def _count(site: CountedNode) -> int:
    """Count n products and n - 1 additions for n points; the weights are not counted."""
    points = _POINTS.get(site.text("mode", "nearest"))
    if (
        points is None
        or site.number("antialias", 0)
        or site.text("coordinate_transformation_mode", "") == "tf_crop_and_resize"
    ):
        raise NotKnown(f"the number of points that {site.operator} reads in this mode depends on its kernel")
    changed = sum(before != after for before, after in zip(site.input(0), site.output(), strict=True))
    around = points**changed
    return site.elements() * (2 * around - 1) if around > 1 else 0


RULE = FlopRule("resize", frozenset({"Resize", "Upsample"}), _count)
