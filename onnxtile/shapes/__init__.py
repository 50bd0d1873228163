"""The shape of each tensor: asked of the engines operator by operator, and what is known of sizes and values without a run."""
