"""The pattern language: syntax, parser, matcher."""
