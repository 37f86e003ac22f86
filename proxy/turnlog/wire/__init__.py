"""The protocols: JSON-RPC, MCP, event streams. Bytes to meaning, and back. Pure."""
