"""Concept vectors: trained, read out and steered by. Imports `native` and the packs."""
