"""A server process from its bind to its last connection."""
