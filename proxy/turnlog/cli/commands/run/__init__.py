"""Commands that run a proxy, or serve an agent."""
