"""Heads, codings, origins and references of HTTP. Pure."""
