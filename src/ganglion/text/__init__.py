"""Prompts from messages; content, reasoning and calls from token bytes. Pure: it imports the core alone."""
