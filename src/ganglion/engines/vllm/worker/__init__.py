"""The worker process: vLLM behind a socket, in vLLM's own environment.

Law: nothing here imports more than the standard library, msgspec, vLLM with what it depends on, and of ours
what needs no more than that.
"""
