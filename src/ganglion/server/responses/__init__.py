"""The Responses wire: answering over HTTP and WebSocket, background runs, stored responses, conversations.

Imports the other endpoints' `http`, the store and the quota; only routes imports it.
"""
