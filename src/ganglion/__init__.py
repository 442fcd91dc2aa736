"""Ganglion: language models on your own machines, behind every wire that clients already speak."""

from importlib.metadata import version

__version__ = version("ganglion")
