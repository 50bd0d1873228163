"""What a plan places: the order of the nodes, live ranges, aliases, and the buffers that these make."""
