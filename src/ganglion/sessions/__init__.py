"""Token sessions: token lists that the server keeps, so that a client sends only what is new."""
