"""Commands about sessions and calls that change the store."""
