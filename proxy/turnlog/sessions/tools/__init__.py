"""The tools that servers showed, beside pins and rules."""
