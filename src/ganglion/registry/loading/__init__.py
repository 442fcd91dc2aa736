"""Loads and unloads models, as one engine over all of them. May import all other folders of the registry."""
