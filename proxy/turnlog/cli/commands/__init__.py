"""One module for each subcommand of `turnlog`."""
