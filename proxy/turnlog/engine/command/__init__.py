"""Tool servers started by a command, behind Streamable HTTP."""
