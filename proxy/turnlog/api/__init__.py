"""Everything under `/turnlog/`: the API, and the tools of an agent for its own session."""
