"""How results are shown in notebooks and written to files: the views of each verb, found by their existence."""
