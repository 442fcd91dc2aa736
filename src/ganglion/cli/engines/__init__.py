"""Commands about engines: those that are here, and how one is built, installed and removed."""
