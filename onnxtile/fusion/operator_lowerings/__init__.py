"""How operators that compute on quantised tensors become float ones: one file for each kind."""
