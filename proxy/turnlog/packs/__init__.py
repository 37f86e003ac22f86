"""Files of rules and other configuration: YAML, packs, examples and turnlog.lock."""
