"""A graph as kernels and tensors by number: which bytes each reads and makes, which may be shared, and how long they are live."""
