"""Token sessions through a gateway: each gRPC call is relayed to the node that holds its session.

Imports `server.grpc` and `ganglion.gateway`; loaded only where a gateway serves gRPC.
"""
