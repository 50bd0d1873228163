"""Result objects rendered for people and scripts."""
