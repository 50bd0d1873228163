"""How multiply-accumulates and other operations are counted, one family of operators a file."""
