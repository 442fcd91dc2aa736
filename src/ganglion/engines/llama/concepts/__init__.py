"""Concept vectors: trained, stored, read out and steered by. Imports `native` only."""
