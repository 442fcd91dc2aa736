"""The client side of the chat wire: requests to other servers, and their streams, errors and states.

It imports the core and the shared pieces of `wire`; it and the dialects do not know each other.
"""
