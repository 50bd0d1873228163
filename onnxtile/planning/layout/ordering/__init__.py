"""Orders of nodes: schedules, precedence, and the search for the order of least peak."""
