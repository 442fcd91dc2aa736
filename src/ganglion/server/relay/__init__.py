"""Token sessions across a fleet: the gateway's gRPC door, which relays each call to the node it concerns."""
