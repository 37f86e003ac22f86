"""The subcommands of `turnlog`, one module each, by what they are for."""
