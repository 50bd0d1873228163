"""What each verb does: its Python function, and the run of its command."""
