"""Memory planning: schedule, live ranges, aliases, offsets, and the proof of a plan."""
