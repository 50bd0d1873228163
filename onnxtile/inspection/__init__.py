"""What a model is made of and what it costs: operators, parameters, work and traffic, layer by layer, and real activations."""
