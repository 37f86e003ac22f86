"""Decisions about the life of a call: duplicates, retries, delivery, broken answers."""
