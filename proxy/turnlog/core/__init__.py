"""What every part speaks of: records, kinds, identifiers, outcomes. Pure."""
