"""The worker process: one loaded model and its step loop.

It may import every other folder of this engine, and none of them imports it.
"""
