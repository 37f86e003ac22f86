"""The subcommands of `turnlog`, one module each."""
