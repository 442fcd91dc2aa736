"""HTTP and gRPC in front of any engine: a node's server, an app to mount, and the gateway's server.

Top modules build the app and wrap the engine; each folder's order is a contract in pyproject.toml.
"""
