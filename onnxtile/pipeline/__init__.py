"""Pipelines: fuse, tile, plan, verify in one file, over one model or many, with budgets that make it a check."""
