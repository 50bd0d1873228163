"""Replaces calls of meta-ops by the operators of `onnxtile.fusion.lowerings`, site by site, and verifies each."""
