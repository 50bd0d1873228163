"""The run of a model in its planned arena: each kernel reads and writes the planned bytes."""
