"""MCP over HTTP: the calls in a request, and what its answers tell."""
