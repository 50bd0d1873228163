"""Tileable operators, one file each."""
