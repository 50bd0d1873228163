"""Results, as JSON, rendered for people and scripts."""
