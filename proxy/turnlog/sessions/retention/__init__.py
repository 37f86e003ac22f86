"""Retention of content: deletion by age, holds."""
