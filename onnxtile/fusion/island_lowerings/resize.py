"""A stored image in another size, of which each element is one of the image's."""

from __future__ import annotations

from onnxtile.fusion.island_lowerings.moved import MovedIsland
from onnxtile.fusion.lower.island_lowering import IslandSite
from onnxtile.fusion.lower.lowering import NotLowered, Replacement


class ResizeIsland(MovedIsland):
    """Resize to the nearest element; other modes compute elements between."""

    def to_onnx(self, island: IslandSite) -> Replacement:
        """Return Resize-11 on the stored tensor."""
        mode = island.first.attributes.get_string("mode", "nearest")
        if (
            mode != "nearest"
            or island.first.attributes.get_string("coordinate_transformation_mode", "") == "tf_crop_and_resize"
        ):
            raise NotLowered(f"its mode is {mode}, which computes elements between those of the image, or crops it")
        return super().to_onnx(island)


RESIZE = ResizeIsland("Resize", 11)
