"""Planners, one file each: from a Problem to offsets."""
