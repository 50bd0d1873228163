"""Movement: which tensors are copied between a fast and a slow memory, and when."""
