"""The wire as a client of other servers speaks it: requests to them, their streams, errors and states.

It imports the core and the shared pieces of `wire`; it and the dialects do not know each other.
"""
