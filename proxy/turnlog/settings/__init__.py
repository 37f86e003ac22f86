"""What an operator may set: defaults, files, environment, flags."""
