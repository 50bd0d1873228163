"""What onnxtile does, one file a verb: its result and its function; `onnxtile.api` shows them to the outside."""
