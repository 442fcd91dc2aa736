"""The nodes as they are now: health checks, leases, queues, and requests that took nodes down.

Imports `upstream` and `gateway.node`; knows neither the catalogue nor routing.
"""
