"""Token sessions over gRPC: the service `salience.v1`, with health and reflection beside it.

Imports sessions, the gate and the middleware's keys; no HTTP endpoint.
"""
