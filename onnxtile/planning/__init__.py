"""Memory planning: the order of the nodes, the aliases, the offsets, and the bounds that prove them."""
