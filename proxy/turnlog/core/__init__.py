"""Records, kinds, identifiers and outcomes, which every other part uses."""
