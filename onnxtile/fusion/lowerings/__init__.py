"""The operators of other runtimes for each meta-op, by family; each lowering is found by its existence."""
