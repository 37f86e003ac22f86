"""What the result of a tool call says: empty, an error, null. Pure."""
