"""A server process from its bind to its last connection: uvicorn, signals, the store, joining gateways.

Imports the app and the gRPC server; only the gateway's server and the command line import it.
"""
