"""Contents and cost of a model: operators, parameters, work and memory traffic, layer by layer, and activations of a run."""
