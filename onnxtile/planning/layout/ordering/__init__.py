"""Which node runs when, and what that says of the lives of tensors."""
