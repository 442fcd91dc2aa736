"""Resolves names to models: names, the manifest models.yaml, and the resolver over both."""
