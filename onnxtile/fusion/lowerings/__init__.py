"""The operators of other runtimes for each meta-op: one file a meta-op, found by its existence."""
