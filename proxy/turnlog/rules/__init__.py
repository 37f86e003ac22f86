"""The rules of operators: their language, and what they decide for a call and its answer."""
