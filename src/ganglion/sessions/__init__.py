"""Token sessions, kept by the server so that a client sends only new tokens; over `core` and `text`."""
