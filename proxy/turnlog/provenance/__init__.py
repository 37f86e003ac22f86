"""Provenance: where the values in the arguments of a call came from. Pure."""
