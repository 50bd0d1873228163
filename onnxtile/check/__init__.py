"""The independent check of a plan file: it reads protobuf and the plan, and shares no code with the planner."""
