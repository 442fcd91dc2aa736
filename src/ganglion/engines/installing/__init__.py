"""Engines that are brought to this machine: their place, their packages, and the programs that make them."""
