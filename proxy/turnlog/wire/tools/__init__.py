"""Definitions of tools: as listed, as kept, and what differs between two. Pure."""
