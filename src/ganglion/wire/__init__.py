"""Dialects: parse a client's body, project events into frames, fold into bodies; pure."""
