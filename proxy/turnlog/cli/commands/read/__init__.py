"""Commands that read a store."""
