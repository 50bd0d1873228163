"""Tiling: matrix products cut into hardware-bounded pieces."""
