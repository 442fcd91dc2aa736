"""Layers that every HTTP request passes: log, errors, origin, authentication, body memory, default model.

Imports no endpoint; the scope's readers and the principal are what endpoints import from here.
"""
