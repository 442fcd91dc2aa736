"""Tool calls in each model family's format: reading, rendering and forcing them. Pure."""
