"""Orders that need few bytes: a search over all of them, and one that cuts a model at its narrow steps."""
