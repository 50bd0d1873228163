"""What tile cuts, and how: matrix products and convolutions."""

from __future__ import annotations

from typing import TypeAlias

from onnxtile.tiling.conv.grid import ConvGrid
from onnxtile.tiling.conv.layer import Convolution
from onnxtile.tiling.grid import TileGrid
from onnxtile.tiling.product import Product

Layer: TypeAlias = Product | Convolution
Cuts: TypeAlias = TileGrid | ConvGrid
