"""Bytes and connections: HTTP/1.1 to the tool servers, requests, pipes."""
