"""A worker process as the server sees it: its frames, its supervision, the isolation of suspects.

It knows no engine: it imports `child.py` and core.
"""
