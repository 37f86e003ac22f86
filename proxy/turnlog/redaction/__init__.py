"""Secrets cut out of what is recorded or logged. Pure."""
