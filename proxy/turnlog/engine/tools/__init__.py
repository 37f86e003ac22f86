"""Tools: definitions, pins, effects."""
