"""Fusion: pattern files, meta-ops as local functions, and the way back."""
