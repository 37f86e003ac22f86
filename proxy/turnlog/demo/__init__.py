"""The demo: a real tool server and a real agent, scripted."""
