"""Many nodes as one server: who is there, who answers what, and the bytes between."""
