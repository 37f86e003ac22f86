"""The life of a call: what is sent, answered, joined, repeated. Pure."""
