"""MCP over pipes: `turnlog wrap`."""
