"""Calls that repeat an earlier one."""
