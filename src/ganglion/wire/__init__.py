"""The dialects: each parses what its clients send and projects events into what they read; all of it pure."""
