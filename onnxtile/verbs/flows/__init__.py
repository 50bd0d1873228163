"""The work of the verbs: what each does with a model, from reading it to the verdict of the runs."""
