"""Layers that every HTTP request passes: log, errors, origin, identity, body memory, default model."""
