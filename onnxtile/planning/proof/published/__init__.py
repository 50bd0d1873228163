"""The independent check of a published plan: it starts from the model and shares no code with the planner."""
