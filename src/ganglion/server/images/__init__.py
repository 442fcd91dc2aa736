"""Images that a request names by an address: which ones may be fetched, how, and where that happens."""
