"""The client in an event loop: a thin layer over the flows, from which `make generate` writes `_sync`."""
