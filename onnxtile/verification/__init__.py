"""Comparison of two models: both run in onnxruntime on the same inputs, and every output is compared."""
