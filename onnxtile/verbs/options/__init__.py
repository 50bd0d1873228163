"""The options of each verb: declarations, from which the command line, pipelines, Python functions and the docs are derived."""
