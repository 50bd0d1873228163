"""The commands, one file each: a module adds its own to the application with `add_to(app)`."""
