"""Ganglion measured against llama.cpp's own server, on the same model, threads and machine."""
