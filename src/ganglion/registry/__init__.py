"""Resolves names to models, downloads their files, and loads and unloads models. Imports core alone."""
