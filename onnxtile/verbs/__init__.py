"""The verbs, one file each: its options, its function, and the Verb that the command line and pipelines are derived from.

A file is read without what models need; what does the work is imported when it is called.
"""
