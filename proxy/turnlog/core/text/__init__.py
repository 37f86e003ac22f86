"""Text for people: columns, times, durations and sizes, one-line summaries. Pure."""
