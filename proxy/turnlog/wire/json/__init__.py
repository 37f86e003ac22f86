"""JSON text read in place, also where it comes in pieces. Pure."""
