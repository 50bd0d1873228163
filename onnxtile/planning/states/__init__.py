"""State: inputs and outputs of a model that are the same tensor, before a run and after it."""
