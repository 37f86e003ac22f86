"""A real tool server and a real agent, scripted, to watch turnlog at work."""
