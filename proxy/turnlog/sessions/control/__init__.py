"""Changes of sessions that somebody asks for, as commits with an expected head."""
