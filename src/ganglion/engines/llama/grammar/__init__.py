"""Grammars: compiled, tried in a child process, followed token by token. Imports `native` only."""
