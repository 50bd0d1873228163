"""How quantised islands are lowered, by family of their operators."""
