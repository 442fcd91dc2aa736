"""The doors: HTTP, authentication, health, metrics."""
