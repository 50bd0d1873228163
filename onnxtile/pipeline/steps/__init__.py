"""The steps that a pipeline can have, one file each, found by their existence."""
