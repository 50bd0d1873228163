"""The orders in which a plan may run a model: one file each, found by its existence."""
