"""What each meta-op is in the operators of others: one file a meta-op, found by its existence."""
