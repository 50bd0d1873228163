"""Rules that count multiply-accumulates and other operations, one family of operators a file."""
