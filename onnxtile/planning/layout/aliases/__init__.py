"""Aliases: tensors that may share bytes by the rules of their operators, and those chosen to."""
