"""The settings of an operator: their model, and reading them from file, environment and flags."""
