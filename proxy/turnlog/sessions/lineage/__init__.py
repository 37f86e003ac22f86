"""Where the values in calls came from, read from the log."""
