"""How multiply-accumulates are counted, one family of operators a file."""
