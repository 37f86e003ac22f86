"""The tools of an agent for its own session, as an MCP server."""
