"""Stores of responses, conversations and keys, which outlive the server; over `core` alone."""
