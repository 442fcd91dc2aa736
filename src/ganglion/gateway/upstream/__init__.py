"""HTTP to nodes: addresses, pooled connections, and a client for calls that are awaited.

Imports `gateway.node` and no other part of the gateway.
"""
