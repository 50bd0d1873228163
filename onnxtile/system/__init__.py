"""The system around the product: files, limits, processes, progress, text formats, the runtime, and the errors that all raise."""
