"""Reading: snapshots of the log, and the attempts that a filter wants."""
