"""Rewrites of a model that make its activations fit a memory."""
