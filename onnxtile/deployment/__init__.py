"""Plans in the files and interfaces of other runtimes."""
