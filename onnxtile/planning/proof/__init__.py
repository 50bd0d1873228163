"""The proofs of a plan: an independent check, and a run inside the arena."""
