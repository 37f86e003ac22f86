"""Commands about rules and pins."""
