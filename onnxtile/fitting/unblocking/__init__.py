"""Rewrites of a model that are made before it is cut, so that less lives at once and more can be cut."""
