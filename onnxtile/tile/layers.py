"""What tile cuts, and how: matrix products and convolutions."""

from __future__ import annotations

from typing import TypeAlias

from onnxtile.tile.conv.grid import ConvGrid
from onnxtile.tile.conv.layer import Convolution
from onnxtile.tile.grid import TileGrid
from onnxtile.tile.product import Product
from onnxtile.tile.zoned import ZonedGrid

Layer: TypeAlias = Product | Convolution
Cuts: TypeAlias = TileGrid | ZonedGrid | ConvGrid
