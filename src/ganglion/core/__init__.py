"""The vocabulary: events, requests, ports and errors; standard library only."""
