"""What is known of tools: definitions, pins, effects."""
