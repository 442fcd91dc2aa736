"""HTTP endpoints of the wires and of the node itself, one module a subject, over `http`, which all share.

They import the engine's wrappers, the gate and the middleware; nothing of routes, Responses or gRPC.
"""
