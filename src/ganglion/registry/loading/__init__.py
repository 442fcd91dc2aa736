"""Which models are loaded, for how long, and which one makes room."""
