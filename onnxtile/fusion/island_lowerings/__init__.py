"""How quantised islands are lowered: one file for each operator."""
