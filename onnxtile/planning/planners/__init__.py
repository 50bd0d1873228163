"""Planners, found by their existence: from a Problem to offsets."""
