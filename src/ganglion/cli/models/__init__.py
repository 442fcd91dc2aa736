"""`ganglion models`: find, fetch and hold models."""
