"""HTTP clients of a running node or gateway, with the standard library alone."""
