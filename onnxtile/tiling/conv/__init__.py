"""Convolutions: what a tile of one reads, how it is cut, chosen, written and judged."""
