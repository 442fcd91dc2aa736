"""The public port: requests in, bytes to a node and back, without parsing what need not be parsed.

May import every folder of the gateway, but not `engine` and `remote`, which answer what it cannot pass on.
"""
