"""The commands that are no verb on a model: they use all that the library has."""
