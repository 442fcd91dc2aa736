"""Grammars: compiled, tried in a child, followed token by token."""
