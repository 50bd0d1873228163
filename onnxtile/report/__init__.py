"""ResultJson objects rendered for people and scripts."""
