"""Exact offsets: a search over canonical plans, which ends with the smallest arena or with the budget."""
