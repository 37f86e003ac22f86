"""What an operator says of calls, and what that comes to for one of them. Pure."""
