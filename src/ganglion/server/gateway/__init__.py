"""The gateway as a server: its process, its control app of admin routes and stored state, and the gRPC relay.

Imports `ganglion.gateway` and what a node's server is made of; nothing else of the server imports it.
"""
