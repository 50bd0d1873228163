"""Report formats, found by their existence."""
