"""Commands about the store as a whole."""
