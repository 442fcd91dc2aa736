"""The doors: HTTP in front of any engine."""
