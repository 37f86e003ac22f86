"""Calls as commits: drafts, the recorder, and the log events of calls."""
