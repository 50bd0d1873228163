"""Tileable operators, by family."""
