"""The orders in which a plan may run a model, found by their existence."""
