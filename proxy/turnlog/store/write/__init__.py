"""Writing: drafts are prepared, queue up, and are committed in groups by one thread."""
