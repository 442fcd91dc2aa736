"""Text, tables, progress and logs for people at a terminal."""
