"""How operators that compute on quantised tensors become float ones, by family."""
