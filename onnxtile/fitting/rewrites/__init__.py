"""Rewrites of a graph that let fit cut it: equal results in another order or in parts."""
