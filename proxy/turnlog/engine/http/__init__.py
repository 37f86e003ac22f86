"""Calls over HTTP: requests of agents, attempts, answers."""
