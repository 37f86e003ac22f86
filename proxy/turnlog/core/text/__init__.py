"""Text for people: units and times, terminal columns, one-line summaries of answers."""
