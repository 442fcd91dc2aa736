"""Keys, limits, prices and usage: whether a request is admitted, and what it is charged.

Imports no other folder of the gateway: it knows no node.
"""
