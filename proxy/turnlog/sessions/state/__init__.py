"""The states of sessions, saved and compared."""
