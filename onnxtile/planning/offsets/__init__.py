"""Offsets for buffers with sizes and live ranges: the problem, heuristics, the exact search, several memories. Knows no ONNX."""
