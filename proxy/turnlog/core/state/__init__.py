"""The state of a session: its commits folded. Pure."""
