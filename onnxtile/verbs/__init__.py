"""The verbs, one file each: its options, its help, and the Verb that the command line and pipelines are derived from.

A file is read without what models need; `flows` has the functions and the work, and is imported when a verb is called.
"""
