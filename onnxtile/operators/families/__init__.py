"""The rows of operators, one module a family. Each is found by its existence."""
