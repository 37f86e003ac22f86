"""Redaction of secrets in what is recorded or logged."""
