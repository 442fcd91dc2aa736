"""Which models there are and where they are loaded: catalogue, placement, loading and scaling.

Imports `fleet`, `upstream` and `access`; knows nothing of requests.
"""
