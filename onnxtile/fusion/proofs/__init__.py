"""Proofs that a function body computes the formula of a meta-op."""
