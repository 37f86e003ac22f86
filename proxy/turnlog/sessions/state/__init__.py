"""States of sessions: at any commit, their differences, and saving them."""
