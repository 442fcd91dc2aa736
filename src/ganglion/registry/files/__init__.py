"""Model files: their formats, names, parts and digests."""
