"""The layout of a graph: the order of its nodes, live ranges, aliases, and the buffers to be placed."""
