"""Which tensors may share bytes, and which of them do."""
