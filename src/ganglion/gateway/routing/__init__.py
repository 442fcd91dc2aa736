"""Where a request goes, and what follows when a node fails. Pure: no I/O, no clock.

Imports `placing` and `fleet`.
"""
