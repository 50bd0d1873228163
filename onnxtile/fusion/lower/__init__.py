"""Lowering: calls of meta-ops and islands become standard operators, each proved or tried at its site."""
