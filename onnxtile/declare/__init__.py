"""What an option, a value and a verb are: declarations from which command, pipeline, Python and docs come."""
