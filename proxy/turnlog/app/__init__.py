"""Assembles the parts and runs them."""
